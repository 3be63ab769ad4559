import pytest

from minigpt.records import TRAIN_LOSS
from minigpt.training import Session
from runners.config import RunConfig
from runners.execution import training_plan
from tests.golden.regenerate import GOLDEN, STEPS, losses

# The bits may differ between processors, as kernels add in another order. One ulp on
# every weight, two threads, and the kernels for processors without AVX move a loss of
# these 60 steps by at most 1.5e-6, three ulps of the loss, and do not grow. A change
# of the maths shows: weight decay left out moves one by 2.7e-4, beta2 .951 by 6.4e-4.
TOLERANCE = 1e-5


def read():
    lines = [line.split() for line in GOLDEN.read_text().splitlines()]
    assert [int(step) for step, _ in lines] == list(range(STEPS))
    return [float(loss) for _, loss in lines]


def test_the_default_run_has_the_golden_losses():
    assert losses() == pytest.approx(read(), rel=0, abs=TOLERANCE)


def test_a_small_change_of_the_maths_is_beyond_the_tolerance():
    plan = training_plan(RunConfig(steps=STEPS))
    plan.optimizer.weight_decay = 0.0
    session = Session(plan)
    at = session.layout.scalars.index(TRAIN_LOSS)
    found = [record.scalars[at] for record in session.records()]
    apart = [abs(a - b) for a, b in zip(found, read(), strict=True)]
    assert max(apart) > 10 * TOLERANCE
