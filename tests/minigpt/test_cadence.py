"""The columns that are measured now and then: when, of which weights, at what cost."""

import pytest

from minigpt import records as col
from minigpt.batches import collate, load_dataset
from minigpt.model import MiniGPT
from minigpt.observer import CadenceConfig
from minigpt.probes import future_leak, spectral_norms, validation_loss
from minigpt.training import Session
from tests.minigpt.runs import first_difference, make_plan, record, train

OFTEN = CadenceConfig(validation=4, spectral=6, probe=5)


def test_cadence_columns_appear_at_their_steps_only(healthy):
    run = train(make_plan(steps=13, cadence=OFTEN))
    spectral = [c for c in run.layout.occasional if c.startswith(col.SPECTRAL_NORM)]
    assert len(spectral) == 13
    for name, every in (
        (col.VAL_LOSS, 4),
        (col.VAL_LOSS_CAUSAL, 4),
        (col.FUTURE_LEAK, 5),
        *((name, 6) for name in spectral),
    ):
        assert list(run.occasional(name)) == list(range(0, 13, every)), name
        assert not healthy.occasional(name)


def test_measuring_more_often_changes_nothing_else(healthy):
    run = train(make_plan(steps=20, cadence=OFTEN))
    for row in run.records:
        for name in run.layout.occasional:
            if not name.startswith("token/"):
                row.occasional.pop(name, None)
    assert first_difference(healthy, run) is None


@pytest.fixture
def held_out():
    _, validation = load_dataset()
    return collate(0, validation.rows, validation.regular)


def test_values_are_of_the_weights_before_the_update(held_out):
    every = CadenceConfig(validation=1, spectral=1, probe=1)
    session = Session(make_plan(steps=5, cadence=every))
    twin = MiniGPT(session.plan.model, seed=0)
    for model in (session.model, twin):  # a leak, so that the probes have a value
        model.blocks[0].attn.causal = False
    shortest = min(len(row) for row in held_out.rows[:2]) - 1
    unpadded = held_out.inputs[:2, :shortest]
    for taken in range(5):
        twin.load_state_dict(session.model.state_dict())
        losses = validation_loss(twin, held_out)
        leak = future_leak(twin, unpadded)
        matrices = {n: p.detach() for n, p in twin.named_parameters() if p.dim() == 2}
        norms = spectral_norms(matrices)
        run = record(session, until=taken + 1)
        assert run.occasional(col.VAL_LOSS) == {taken: losses[0]}
        assert run.occasional(col.VAL_LOSS_CAUSAL) == {taken: losses[1]}
        assert run.occasional(col.FUTURE_LEAK) == {taken: leak}
        assert losses[0] != losses[1]
        assert leak > 0
        for name, value in norms.items():
            assert run.occasional(col.SPECTRAL_NORM + name) == {taken: value}


def test_a_healthy_run_does_not_leak():
    run = train(make_plan(steps=11, cadence=OFTEN))
    assert run.occasional(col.FUTURE_LEAK) == {0: 0.0, 5: 0.0, 10: 0.0}
    assert run.occasional(col.VAL_LOSS) == run.occasional(col.VAL_LOSS_CAUSAL)
