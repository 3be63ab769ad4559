import pytest

from tests.minigpt.runs import make_plan, train


@pytest.fixture(scope="session")
def healthy():
    """The default plan for 140 steps: the twin of every fault."""
    return train(make_plan(steps=140))
