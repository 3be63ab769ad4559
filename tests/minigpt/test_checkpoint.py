"""Continuing from a checkpoint gives the bits of the run that never stopped."""

import random

import numpy as np
import pytest
import torch

from minigpt.checkpoint import (
    CheckpointConfig,
    CheckpointWriter,
    list_checkpoints,
    read_checkpoint,
)
from minigpt.loaders import LoaderConfig
from minigpt.model import ModelConfig
from minigpt.observer import CadenceConfig
from minigpt.records import InputError
from minigpt.snapshot import restore, take_snapshot
from minigpt.training import Session
from tests.minigpt.runs import fault, first_difference, make_plan, record

PLANS = {
    "plain": {},
    "stratified": {"loader": LoaderConfig(kind="stratified")},
    "measured": {"cadence": CadenceConfig(validation=7, spectral=9, probe=4)},
    "scale": {"injection": fault("scale"), "injection_step": 60},
    "v_corrupt": {"injection": fault("v_corrupt"), "injection_step": 50},
    "rigged": {"injection": fault("rigged_order"), "injection_step": 72},
    "unclipped": {"clip": None},
}


def cut_and_continued(plan, folder, cut):
    """The records from ``cut`` on, of a fresh session that read a file."""
    first = Session(plan)
    record(first, until=cut)
    writer = CheckpointWriter(folder, CheckpointConfig())
    writer.write(take_snapshot(first))
    record(first, until=cut + 3)  # what the first session does now is its own affair
    writer.close()
    second = Session(plan)
    record(second, until=5)  # and so is what the second one did before
    restore(second, read_checkpoint(folder, cut))
    assert second.step == cut
    return record(second)


@pytest.mark.parametrize("name", PLANS)
def test_continuing_is_bit_exact(name, tmp_path):
    plan = make_plan(steps=80, **PLANS[name])
    straight = record(Session(plan))
    continued = cut_and_continued(plan, tmp_path, 50)
    assert [r.step for r in continued.records] == list(range(50, 80))
    straight.records = straight.records[50:]
    assert first_difference(straight, continued) is None


@pytest.mark.parametrize("cut", [0, 30])
def test_from_the_start_and_from_the_seam_of_two_epochs(healthy, cut, tmp_path):
    continued = cut_and_continued(make_plan(steps=45), tmp_path, cut)
    straight = type(healthy)(healthy.layout, healthy.records[cut:])
    assert len(continued) == 45 - cut
    assert first_difference(straight, continued) is None


def draw():
    """Numbers of all three generators, one normal so that numpy keeps a spare."""
    numbers = [random.random(), random.gauss(0, 1), torch.rand(1).item()]
    return [*numbers, np.random.rand(), np.random.standard_normal()]


def test_states_of_the_random_generators_are_restored(tmp_path):
    session = Session(make_plan())
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    draw()
    writer = CheckpointWriter(tmp_path, CheckpointConfig())
    writer.write(take_snapshot(session))
    expected = [draw(), draw()]
    writer.close()
    assert [draw(), draw()] != expected
    restore(session, read_checkpoint(tmp_path, 0))
    assert [draw(), draw()] == expected


def test_a_snapshot_is_a_copy():
    session = Session(make_plan(steps=9))
    record(session, until=5)
    snapshot = take_snapshot(session)
    before = {name: array.copy() for name, array in snapshot.tensors.items()}
    record(session)
    assert snapshot.step == 5
    assert all(np.array_equal(before[n], snapshot.tensors[n]) for n in before)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            ModelConfig(d_ff=128),
            r"w_1\.weight: expected \(128, 64\), found \(256",
        ),
        (ModelConfig(n_layers=3), r"blocks\.2\..*: expected .* found no such tensor"),
        (ModelConfig(n_layers=1), r"blocks\.1\..*: expected no such tensor, found"),
    ],
)
def test_the_checkpoint_of_another_model_is_refused_and_nothing_is_changed(
    model, message
):
    snapshot = take_snapshot(Session(make_plan()))
    session = Session(make_plan(model=model, seed=7))
    before = session.flat.values.clone()
    with pytest.raises(InputError, match=message):
        restore(session, snapshot)
    assert torch.equal(session.flat.values, before)
    assert session.step == 0


# -- when one is written -----------------------------------------------------------


def written_steps(folder, steps, **config):
    session = Session(make_plan(steps=steps))
    writer = CheckpointWriter(folder, CheckpointConfig(**config))
    for _ in session.records():
        writer.offer(session)
    writer.close()
    return list_checkpoints(folder)


def test_one_every_so_many_steps_and_the_last_few_are_kept(tmp_path):
    assert written_steps(tmp_path / "few", 25, every=5, keep=3) == [15, 20, 25]
    assert written_steps(tmp_path / "all", 25, every=10, keep=9) == [10, 20]


def test_every_zero_writes_nothing_not_even_a_folder(tmp_path):
    assert written_steps(tmp_path / "none", 3, every=0) == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"every": -1}, r"checkpoint\.every: .* got -1"),
        ({"keep": 0}, r"checkpoint\.keep: expected at least 1, got 0"),
    ],
)
def test_wrong_config_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        CheckpointConfig(**changes)
