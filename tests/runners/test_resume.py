"""A run goes on where it ended, in its folder and in MLflow, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from analysis.history import load
from analysis.journal import JournalReader
from analysis.parquet import read_parquet
from analysis.rejournal import encode_journal
from minigpt.checkpoint import list_checkpoints
from minigpt.records import TIME_WALL
from runners.owner import owner
from tests.runners.commands import run
from tests.runners.memory_store import Process, change
from tests.runners.stored import (
    columns_bits,
    expected_points,
    mlflow_points,
    mlflow_runs,
)

STEPS, EVERY, STOP = 90, 20, 57
CHOICES = (
    f"steps={STEPS}",
    f"checkpoint.every={EVERY}",
    "injection=scale",
    "injection_step=30",
    "cadence.validation=30",
    "loader=stratified",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody interrupts."""
    root = tmp_path_factory.mktemp("whole")
    return run(*CHOICES, "name=whole", root=root).folder


def interrupted(root, name="x", stop=STOP, choices=CHOICES, signal=KeyboardInterrupt):
    """The folder of a run that ended after the step before ``stop``."""

    def interrupt(name, step, steps, loss):
        if step == stop - 1:
            raise signal

    with pytest.raises(signal):
        run(*choices, f"name={name}", root=root, on_step=interrupt)
    return root / name


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture
def root(tmp_path):
    return tmp_path / "experiments"


def resume(autopsy, *choices, name="x"):
    return autopsy("train", f"resume={name}", "tracking=none", *choices)


# -- the record ------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, EVERY, EVERY + 1, STOP, STEPS])
def test_a_run_that_ended_anywhere_becomes_the_whole_run(autopsy, root, whole, stop):
    folder = interrupted(root, stop=stop)
    kept = load(folder).scalar(TIME_WALL)
    answer = resume(autopsy)
    assert answer.code == 0, answer.err
    assert columns_bits(folder) == columns_bits(whole)
    assert load(folder).notes == []
    # what was recorded keeps its time, and so its points in MLflow
    assert load(folder).scalar(TIME_WALL)[: len(kept)].tolist() == kept.tolist()
    assert manifest_of(folder)["data"] == manifest_of(whole)["data"]


def test_a_killed_process_leaves_enough_to_go_on(autopsy, root, whole):
    """As SIGKILL leaves it: the manifest says running, the last block is cut."""
    folder = interrupted(root)
    closed = manifest_of(folder)
    resume(autopsy, "steps=60")
    kept = (folder / "manifest.json").read_text()
    interrupted(root, "y")
    source = JournalReader(_journal_of(root / "y")).path.read_bytes()
    (folder / "record.parquet").unlink()
    (folder / "journal.bin").write_bytes(source + b"\x93BLK cut")
    (folder / "manifest.json").write_text(kept)
    change(folder, **closed | {"status": "running", "record": None, "ended_at": None})
    change(folder, owner=owner() | {"started": "1"})
    answer = resume(autopsy)
    assert "8 bytes of an unfinished block were put into journal.cut" in answer.out
    assert (folder / "journal.cut").read_bytes() == b"\x93BLK cut"
    assert columns_bits(folder) == columns_bits(whole)


def _journal_of(folder):
    """The journal that a closed folder had, made again."""
    closed = read_parquet(folder / "record.parquet")
    (folder / "journal.bin").write_bytes(encode_journal(closed))
    return folder / "journal.bin"


def test_a_run_may_be_resumed_again_and_again(autopsy, root, whole):
    folder = interrupted(root, stop=35)
    for steps in (40, 41, 77):
        assert resume(autopsy, f"steps={steps}").code == 0
    assert resume(autopsy, f"steps={STEPS}").code == 0
    assert columns_bits(folder) == columns_bits(whole)
    resumes = manifest_of(folder)["resumes"]
    assert [one["at_step"] for one in resumes] == [35, 40, 41, 77]
    assert [one["from_step"] for one in resumes] == [20, 40, 40, 60]
    assert manifest_of(folder)["config_hash"] == manifest_of(whole)["config_hash"]
    assert f"\nsteps: {STEPS}\n" in (folder / "config.yaml").read_text()


def test_a_resume_that_is_killed_in_turn_loses_nothing(autopsy, root, whole):
    folder = interrupted(root)

    def die(self, name, step, steps, loss):
        if step == 45:  # in the middle of the replay
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runners.progress.TrainingProgress.on_step", die)
        assert resume(autopsy).code == 130
    assert len(load(folder)) == STOP
    assert resume(autopsy).code == 0
    assert columns_bits(folder) == columns_bits(whole)


# -- checkpoints -----------------------------------------------------------------------


def test_an_interrupt_saves_a_checkpoint_where_it_is(root):
    folder = interrupted(root)
    assert list_checkpoints(folder / "checkpoints") == [20, 40]
    for number, name in (("SIGINT", "i"), ("SIGTERM", "t")):
        code = (
            "import signal, sys\n"
            "from runners import cli, progress\n"
            "def stop(self, name, step, steps, loss):\n"
            f"    if step == {STOP - 1}: signal.raise_signal(signal.{number})\n"
            "progress.TrainingProgress.on_step = stop\n"
            "cli.main()\n"
        )
        command = [sys.executable, "-c", code, "train", *CHOICES, f"name={name}"]
        done = subprocess.run([*command, f"paths.root={root}", "tracking=none"])
        assert done.returncode == {"SIGINT": 130, "SIGTERM": 143}[number]
        assert list_checkpoints(root / name / "checkpoints") == [20, 40, STOP]
        assert len(load(root / name)) == STOP


@pytest.mark.parametrize("damage", ["tensors", "document", "missing"])
def test_a_damaged_newest_checkpoint_is_noticed_and_the_one_before_used(
    autopsy, root, whole, damage
):
    folder = interrupted(root)
    newest = folder / "checkpoints" / "step-00000040.safetensors"
    if damage == "missing":
        newest.unlink()
    else:
        path = newest if damage == "tensors" else newest.with_suffix(".json")
        data = bytearray(path.read_bytes())
        at = len(data) // 2
        while not chr(data[at]).isdigit():
            at += 1
        data[at] = ord("1") if data[at] != ord("1") else ord("2")
        path.write_bytes(data)
    answer = resume(autopsy)
    assert "step-00000040" in answer.out
    assert "the one before it is used" in answer.out
    assert "goes on from the checkpoint of step 20: 57 steps" in answer.out
    assert columns_bits(folder) == columns_bits(whole)


def test_without_a_checkpoint_all_is_trained_again(autopsy, root, whole):
    folder = interrupted(root, choices=(*CHOICES, "checkpoint.every=0"))
    answer = resume(autopsy)
    assert "goes on from the start, no checkpoint: 57 steps are recorded; 57 are" in (
        answer.out
    )
    assert columns_bits(folder) == columns_bits(whole)


def test_a_checkpoint_beyond_the_record_would_leave_a_gap(autopsy, root, whole):
    folder = interrupted(root)
    ahead = interrupted(root, "ahead", stop=85)
    for path in (ahead / "checkpoints").glob("step-00000080.*"):
        (folder / "checkpoints" / path.name).write_bytes(path.read_bytes())
    answer = resume(autopsy)
    assert "checkpoint of step 80: the record ends before it" in answer.out
    assert columns_bits(folder) == columns_bits(whole)


# -- a replay that differs -------------------------------------------------------------


def test_a_replay_that_differs_is_reported_and_the_record_is_kept(autopsy, root):
    folder = interrupted(root, choices=(*CHOICES, "checkpoint.every=0"))
    before = load(folder)
    config = manifest_of(folder)["config"]
    change(folder, config=config | {"seed": 7})
    answer = resume(autopsy)
    assert answer.code == 0
    assert "57 steps that were trained again differ from the record" in answer.out
    differs = manifest_of(folder)["resumes"][0]["differs"]
    assert (differs["first_step"], differs["count"]) == (0, 57)
    kept = load(folder).scalar("train/loss")[:57]
    assert kept.tolist() == before.scalar("train/loss").tolist()


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        (["clip=0.5"], "expected no other choice than steps, tracking, checkpoint"),
        (["injection=none"], "got injection; a run with another choice"),
        (["-m", "steps=70,90"], "expected without -m"),
        (["resume=y"], "expected one run, got 2"),
        (["steps=x"], "steps: "),
        (["steps=30"], "injection_step: expected 0 to steps - 1"),
    ],
)
def test_other_choices_are_refused_and_nothing_is_changed(autopsy, root, choices, said):
    folder = interrupted(root)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    answer = resume(autopsy, *choices)
    assert answer.code == 2
    assert said in answer.line
    after = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert before == after


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"status": "running", "owner": owner()}, "that process {pid} of host"),
        (
            {"status": "running", "owner": owner() | {"host": "elsewhere"}},
            "autopsy sync x --dead",
        ),
        ({"status": "finished"}, "one that finished its 57 steps"),
        ({"kind": "logged"}, "init(resume=...)"),
        ({"config": 5}, "config: expected dict, found 5"),
    ],
)
def test_a_run_that_cannot_go_on_is_refused(autopsy, root, facts, said):
    folder = interrupted(root)
    change(folder, **facts)
    answer = resume(autopsy, *(["steps=57"] if "finished" in facts.values() else []))
    assert answer.code == 2
    assert said.format(pid=owner()["pid"]) in answer.line


def test_fewer_steps_than_are_recorded_are_refused(autopsy, root):
    folder = interrupted(root)
    before = columns_bits(folder)
    answer = resume(autopsy, "steps=56")
    assert answer.code == 2
    assert "steps: expected at least the 57 that are recorded, got 56" in answer.err
    assert columns_bits(folder) == before
    assert manifest_of(folder)["status"] == "killed"


def test_a_run_that_is_nowhere_is_refused(autopsy, root):
    interrupted(root)
    answer = resume(autopsy, name="nope")
    assert answer.code == 2
    assert "run nope: no such run" in answer.line


# -- in MLflow -------------------------------------------------------------------------


def points(mlflow_run):
    """Key, step and value; once each or it fails."""
    found = {(key, step, value) for key, step, _, value in mlflow_run.metrics}
    assert len(found) == len(mlflow_run.metrics)
    return found


def test_the_same_run_goes_on_in_mlflow_point_for_point(autopsy, root, whole, store):
    folder = interrupted(root, choices=(*CHOICES, "steps=80"))
    Process().follow(folder).end()
    (mlflow_run,) = store.runs.values()
    assert mlflow_run.status == "KILLED"
    resume(autopsy, f"steps={STEPS}")
    change(folder, status="running", owner=owner())
    going_on = Process().follow(folder)
    going_on.shipper.advance()
    assert (mlflow_run.status, mlflow_run.tags["status"]) == ("RUNNING", "running")
    change(folder, status="finished")
    going_on.end()
    Process().follow(whole).end()
    again, other = store.runs.values()
    assert again.status == other.status == "FINISHED"
    assert points(again) == points(other)
    assert again.tags["resumes"] == "1"
    assert "replay_differs" not in again.tags
    assert again.params["steps"] == "80"  # a param is never written twice
    assert again.tags["config_changed.steps"] == "80 -> 90"


@pytest.mark.slow
def test_sigkill_at_700_of_1000_and_resume_is_the_uninterrupted_run(spawn, shell, root):
    whole = ("train", "name=whole", "steps=1000", "injection=scale")
    assert shell(*whole).code == 0
    code = (
        "import os, signal\n"
        "from runners import cli, progress\n"
        "def die(self, name, step, steps, loss):\n"
        "    if step == 700: os.kill(os.getpid(), signal.SIGKILL)\n"
        "progress.TrainingProgress.on_step = die\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", code, *whole[:1], "name=x", *whole[2:]]
    killed = subprocess.run(command, cwd=root.parent)
    assert killed.returncode == -9
    answer = shell("train", "resume=x")
    assert answer.code == 0, answer.err
    assert columns_bits(root / "x") == columns_bits(root / "whole")
    assert mlflow_runs(root) == {"whole": "FINISHED", "x": "FINISHED"}
    for name in ("x", "whole"):
        assert mlflow_points(root, name) == expected_points(root / name)
    both = [
        {(key, step, value) for key, step, _, value in mlflow_points(root, name)}
        for name in ("x", "whole")
    ]
    assert both[0] == both[1]
