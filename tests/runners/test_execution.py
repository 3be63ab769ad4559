"""One run from config to closed folder, however it ends."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest

from analysis.history import load
from analysis.journal import JournalReader
from minigpt.checkpoint import list_checkpoints, read_checkpoint
from minigpt.records import TIME_WALL, TRAIN_LOSS, InputError
from minigpt.tokenizer import TOKENIZER_PATH
from runners import recorder
from runners.compose import compose_config
from runners.execution import check, execute
from runners.signals import Terminated
from tests.runners.commands import NO_TRACKER, run
from tests.runners.stored import columns_bits

OPEN = {"manifest.json", "config.yaml", "vocabulary.json", "checkpoints"}
CLOSED = OPEN | {"record.parquet"}


def files(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def manifest_of(folder) -> dict:
    return json.loads((folder / "manifest.json").read_text())


# -- a run that finishes ---------------------------------------------------------------


def test_a_finished_run_leaves_its_record_and_nothing_unfinished(finished):
    assert files(finished.folder) == CLOSED
    history = load(finished.folder)
    assert (len(history), history.notes) == (30, [])
    assert manifest_of(finished.folder)["record"]["rows"] == 30
    vocabulary = (finished.folder / "vocabulary.json").read_bytes()
    assert vocabulary == TOKENIZER_PATH.read_bytes()


def test_the_result_is_that_of_the_record(finished):
    assert (finished.status, finished.steps, finished.error) == ("finished", 30, None)
    assert finished.final_loss == load(finished.folder).scalar(TRAIN_LOSS)[-1]
    walls = load(finished.folder).scalar(TIME_WALL)
    assert 0 < walls[-1] - walls[0] < finished.training_seconds


def test_checkpoints_are_there_at_their_steps(finished):
    folder = finished.folder / "checkpoints"
    assert list_checkpoints(folder) == [10, 20, 30]
    assert read_checkpoint(folder, 30).finite


def test_the_same_config_gives_the_same_bits(finished, tmp_path):
    again = run("steps=30", "name=other", "checkpoint.every=7", root=tmp_path).folder
    assert columns_bits(again) == columns_bits(finished.folder)


def test_another_seed_gives_others(finished, tmp_path):
    other = columns_bits(run("steps=30", "seed=7", root=tmp_path).folder)
    same = {
        name
        for name, bits in columns_bits(finished.folder).items()
        if other[name] == bits
    }
    assert TRAIN_LOSS not in same
    assert "state/param_hash" not in same


def test_a_run_cut_short_is_a_prefix(finished, tmp_path):
    short = load(run("steps=11", root=tmp_path).folder)
    whole = load(finished.folder)
    for name in set(short.data.flat) - {TIME_WALL}:
        found, expected = short.data.flat[name], whole.data.flat[name][:11]
        assert found.tobytes() == expected.tobytes(), name


def test_each_step_is_told_with_the_name_of_its_folder(tmp_path):
    told = []
    for _ in range(2):
        run("steps=2", "name=x", root=tmp_path, on_step=lambda *a: told.append(a[:3]))
    assert told == [("x", 0, 2), ("x", 1, 2), ("x-2", 0, 2), ("x-2", 1, 2)]


def test_no_checkpoint_is_ahead_of_the_journal(tmp_path, monkeypatch):
    """A run killed right after a checkpoint can go on from it without a gap."""
    ahead = []
    write = recorder.CheckpointWriter.offer

    def offer(writer, session):
        journal = next(tmp_path.glob("*/journal.bin"))
        rows = sum(len(block) for block in JournalReader(journal).blocks())
        ahead.append(session.step - rows)
        write(writer, session)

    monkeypatch.setattr(recorder.CheckpointWriter, "offer", offer)
    run("steps=20", "checkpoint.every=5", root=tmp_path)
    assert ahead == [0, 0, 0, 0]


# -- mistakes --------------------------------------------------------------------------


def test_what_does_not_fit_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError, match="240 rows"):
        run("loader.batch_size=1000", "steps=2", root=tmp_path / "root")
    with pytest.raises(InputError, match="240 rows"):
        check(compose_config(["loader.batch_size=1000"]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["manifest.json", "config.yaml", "journal.bin", "checkpoints"]
)
def test_a_folder_that_cannot_be_opened_is_taken_away(tmp_path, monkeypatch, name):
    """Step 0 was never reached, so there is nothing to keep."""

    def full(path, *arguments, **options):
        temporary = path.name.startswith(f"{name}.") and path.suffix == ".tmp"
        if path.name == name or temporary:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real[type(path)](path, *arguments, **options)

    cls = type(tmp_path)
    method = "mkdir" if name == "checkpoints" else "open"
    real = {cls: getattr(cls, method)}
    monkeypatch.setattr(cls, method, full)
    with pytest.raises(OSError, match="No space left") as caught:
        run("steps=2", "name=x", root=tmp_path)
    assert str(tmp_path / "x") in caught.value.filename
    assert list(tmp_path.iterdir()) == []


# -- a run that fails ------------------------------------------------------------------


class _Odd(Exception):
    """An error of the code."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (_Odd("at step 4"), "failed"),
        (SystemExit(0), "failed"),
        (KeyboardInterrupt(), "killed"),
        (Terminated(), "killed"),
    ],
)
def test_an_early_end_closes_the_folder_with_its_reason(tmp_path, error, status):
    def stop(name, step, steps, loss):
        if step == 4:
            raise error

    results = []
    config = compose_config(["steps=9", f"paths.root={tmp_path}", "tracking=none"])
    with pytest.raises(type(error)):
        execute(config, NO_TRACKER, stop, on_end=results.append)
    (result,) = results
    assert (result.status, result.steps) == (status, 5)
    manifest = manifest_of(result.folder)
    assert manifest["status"] == status
    assert manifest["error"].startswith(type(error).__name__)
    assert files(result.folder) == CLOSED
    history = load(result.folder)
    assert len(history) == 5
    assert history.notes == [f"the run's status is {status}"]


def test_a_diverged_run_finishes_and_its_nan_is_on_record(tmp_path):
    folder = run(
        "steps=40", "schedule.lr_max=1e30", "schedule.warmup_steps=0", root=tmp_path
    ).folder
    loss = load(folder).scalar(TRAIN_LOSS)
    assert np.isfinite(loss[0])
    assert not np.isfinite(loss[-1])
    assert (len(loss), manifest_of(folder)["status"]) == (40, "finished")
