"""``autopsy sync``: what is missing in MLflow, once, and nothing that is alive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from analysis.history import load
from analysis.parquet import read_parquet
from analysis.rejournal import encode_journal
from runners.custody import Custody
from runners.folders import read_link
from runners.owner import owner
from tests.runners.memory_store import Process, a_sweep, change, shipped_steps
from tests.runners.stored import expected_steps

DEAD = {"status": "running", "record": None, "ended_at": None}


@pytest.fixture
def runs(copied):
    """Five finished runs that no store has."""
    for number in range(1, 5):
        shutil.copytree(copied, copied.parent / f"r{number}")
    for folder in copied.parent.iterdir():
        tracking = {"kind": "mlflow", "uri": None, "experiment": "lab"}
        change(folder, tracking=tracking, name=folder.name, key=folder.name)
    return copied.parent


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def kill(folder, **who):
    """Make a folder that of a run which nobody closed."""
    closed = read_parquet(folder / "record.parquet")
    (folder / "journal.bin").write_bytes(encode_journal(closed))
    (folder / "record.parquet").unlink()
    change(folder, **DEAD, owner=owner() | {"started": "1"} | who)


def old(folder, seconds):
    """The last sign of life of a run is so old."""
    moment = time.time() - seconds
    for path in folder.iterdir():
        os.utime(path, (moment, moment))


def test_everything_is_shipped_once(autopsy, store, runs):
    answer = autopsy("sync")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[-1] == "sync: 0 complete already, 5 shipped now"
    assert {run.info.name for run in store.runs.values()} == {
        folder.name for folder in runs.iterdir()
    }
    assert {run.status for run in store.runs.values()} == {"FINISHED"}
    before = {key: set(run.metrics) for key, run in store.runs.items()}
    again = autopsy("sync")
    assert again.out == "sync: 5 complete already\n"
    assert {key: run.metrics for key, run in store.runs.items()} == before


def test_only_the_named_runs_are_shipped(autopsy, store, runs):
    answer = autopsy("sync", "r1", runs / "r3")
    assert answer.code == 0
    assert {run.info.name for run in store.runs.values()} == {"r1", "r3"}


def test_a_run_that_is_not_there_is_a_mistake(autopsy, store, runs):
    answer = autopsy("sync", "nope")
    assert answer.code == 2
    assert "nope" in answer.line


def test_a_killed_run_is_closed_and_completed(autopsy, store, runs):
    kill(runs / "r1")
    assert autopsy("sync", "r1").code == 0
    (mlflow_run,) = store.runs.values()
    assert mlflow_run.status == "KILLED"
    assert shipped_steps(mlflow_run) == expected_steps(runs / "r1") == [0, 10, 20]
    assert manifest_of(runs / "r1")["status"] == "killed"
    assert len(load(runs / "r1")) == 30


@pytest.mark.parametrize("left", ["nothing", "half a header", "a header"])
def test_a_run_that_died_before_its_first_step_is_closed(autopsy, store, runs, left):
    kill(runs / "r1")
    journal = runs / "r1" / "journal.bin"
    data = journal.read_bytes()
    header = data[: data.index(b"\x93BLK")]
    if left == "nothing":
        journal.unlink()
    else:
        journal.write_bytes(header if left == "a header" else header[:300])
    answer = autopsy("sync", "r1")
    assert answer.code == 0, answer.out
    (mlflow_run,) = store.runs.values()
    assert (mlflow_run.status, mlflow_run.metrics) == ("KILLED", set())
    assert manifest_of(runs / "r1")["status"] == "killed"
    assert "1 complete already" in autopsy("sync", "r1").out


def test_a_live_run_is_left_alone(autopsy, store, runs):
    kill(runs / "r1", started=owner()["started"])
    before = (runs / "r1" / "manifest.json").read_bytes()
    answer = autopsy("sync")
    assert answer.code == 0
    assert "1 still training" in answer.out
    assert len(store.runs) == 4
    assert (runs / "r1" / "manifest.json").read_bytes() == before


def test_a_run_of_another_host_is_closed_only_by_who_knows(autopsy, store, runs):
    kill(runs / "r1", host="elsewhere")
    old(runs / "r1", 3 * 3600)
    answer = autopsy("sync")
    assert answer.code == 1
    said = "not synced: r1: whether it still trains on host elsewhere cannot be told"
    assert said in answer.out
    assert "3 hours old. If it is dead: autopsy sync r1 --dead" in answer.out
    assert manifest_of(runs / "r1")["status"] == "running"
    assert autopsy("sync", "r1", "--dead").code == 0
    assert manifest_of(runs / "r1")["status"] == "killed"
    assert {run.status for run in store.runs.values()} == {"FINISHED", "KILLED"}


def test_what_shows_signs_of_life_is_not_dead_whoever_says_so(autopsy, store, runs):
    kill(runs / "r1", host="elsewhere")
    (runs / "r1" / "heartbeat").touch()
    answer = autopsy("sync", "r1", "--dead")
    assert answer.code == 1
    assert "expected a dead run, found a sign of life 0 s old" in answer.out
    assert manifest_of(runs / "r1")["status"] == "running"


def test_dead_needs_names(autopsy, store, runs):
    answer = autopsy("sync", "--dead")
    assert answer.code == 2
    assert "--dead: expected the runs" in answer.line


def test_what_is_not_meant_for_mlflow_is_shipped_by_name_only(autopsy, store, runs):
    change(runs / "r1", tracking={"kind": "none", "uri": None, "experiment": "lab"})
    change(runs / "r2", tracking={"kind": "offline", "uri": None, "experiment": "lab"})
    answer = autopsy("sync")
    assert "1 not meant for MLflow (tracking=none)" in answer.out
    assert len(store.runs) == 4
    autopsy("sync", "r1")
    assert len(store.runs) == 5


def test_a_store_that_is_away_is_one_line(autopsy, store, runs):
    store.broken = True
    answer = autopsy("sync")
    assert answer.code == 1
    (line, _) = answer.out.splitlines()
    assert line.startswith("not synced: healthy, r1, r2, r3, r4: database is locked")
    store.broken = False
    assert autopsy("sync").code == 0


def test_an_upload_that_fails_once_is_tried_again(autopsy, store, runs, monkeypatch):
    real, failed = store.log_artifact, []

    def fail_once(run_id, path):
        if not failed:
            failed.append(path)
            raise OSError("connection reset")
        real(run_id, path)

    monkeypatch.setattr(store, "log_artifact", fail_once)
    assert autopsy("sync", "r1").code == 0
    (mlflow_run,) = store.runs.values()
    record = manifest_of(runs / "r1")["record"]["sha256"]
    assert mlflow_run.artifacts["record.parquet"] == record
    assert failed


def test_an_address_without_its_password_is_asked_for(autopsy, store, runs):
    uri = "postgresql://***@host/db"
    change(runs / "r1", tracking={"kind": "mlflow", "uri": uri, "experiment": "lab"})
    answer = autopsy("sync", "r1")
    assert answer.code == 1
    assert f"its store is {uri}, whose password is not kept; give it with --uri" in (
        answer.out
    )
    assert autopsy("sync", "r1", "--uri", "postgresql://me:pw@host/db").code == 0
    assert "pw" not in (runs / "r1" / "mlflow.json").read_text()


@pytest.mark.parametrize("damage", ["manifest", "record", "tracking"])
def test_a_damaged_folder_stops_no_other(autopsy, store, runs, damage):
    if damage == "manifest":
        (runs / "r1" / "manifest.json").write_text("{")
    elif damage == "record":
        (runs / "r1" / "record.parquet").write_bytes(b"x")
    else:
        change(runs / "r1", tracking=5)
    answer = autopsy("sync")
    assert answer.code == 1
    assert "not synced: r1: " in answer.out
    assert [run.status for run in store.runs.values()].count("FINISHED") == 4


_KEYS = ("name", "status", "config", "git", "owner", "shipping_rule", "started_at")
_KEYS += ("record", "ended_at", "error", "facts", "experiment", "sweep", "key")


@pytest.mark.parametrize("value", ["gone", 5, [], None])
@pytest.mark.parametrize("key", _KEYS)
def test_a_manifest_that_was_edited_is_one_line_at_most(
    autopsy, store, runs, key, value
):
    path = runs / "r1" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest = {k: v for k, v in manifest.items() if k != key}
    path.write_text(json.dumps(manifest | ({} if value == "gone" else {key: value})))
    answer = autopsy("sync", runs / "r1")
    assert answer.code in (0, 1)
    assert len(answer.out.splitlines()) == 2
    resumed = autopsy("train", f"resume={runs / 'r1'}", "steps=31", "tracking=none")
    assert resumed.code in (0, 2)


def test_a_run_deleted_in_mlflow_is_made_again(autopsy, store, runs):
    autopsy("sync", "r1")
    store.runs.clear()
    assert "1 shipped now" in autopsy("sync", "r1").out
    assert len(store.runs) == 1


def test_a_record_that_changed_since_is_shipped_again(autopsy, store, runs):
    autopsy("sync", "r1")
    (mlflow_run,) = store.runs.values()
    before = mlflow_run.tags["record_sha256"]
    mlflow_run.tags["record_sha256"] = "of the record before it was resumed"
    assert "1 shipped now" in autopsy("sync", "r1").out
    assert mlflow_run.tags["record_sha256"] == before


def test_a_shipper_that_died_between_making_a_run_and_saying_so_made_no_second(
    autopsy, store, runs, monkeypatch
):
    def die(*arguments, **facts):
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr("runners.mlflow_run.MlflowRun._write_link", die)
        assert autopsy("sync", "r1").code == 1
    assert read_link(runs / "r1") is None
    assert autopsy("sync", "r1").code == 0
    assert len(store.runs) == 1


_HOLD = """
import sys
from pathlib import Path
from runners.custody import Custody
custody = Custody(Path(sys.argv[1]))
assert custody.take()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_that_another_process_ships_is_waited_for(
    autopsy, store, runs, monkeypatch
):
    command = [sys.executable, "-c", _HOLD, str(runs / "r1")]
    holder = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)
    assert holder.stdout.readline() == "held\n"
    monkeypatch.setattr("runners.follower.OTHERS_SECONDS", 0.3)
    answer = autopsy("sync", "r1")
    assert answer.code == 1
    assert "not synced: r1: another process ships it" in answer.out
    holder.kill()  # the lock ends with its process
    holder.communicate()
    assert autopsy("sync", "r1").code == 0
    assert Custody(runs / "r1").take()


# -- sweeps ----------------------------------------------------------------------------


def test_the_parent_of_a_killed_sweep_is_closed(autopsy, store, runs):
    sweep = a_sweep(runs / "r1", "running")
    change(runs / "r2", sweep="s-1")
    document = json.loads((sweep / "sweep.json").read_text())
    document["owner"]["started"] = "1"
    (sweep / "sweep.json").write_text(json.dumps(document))
    assert autopsy("sync").code == 0
    parents = [run for run in store.runs.values() if "sweep_parent" in run.tags]
    assert [parent.status for parent in parents] == ["KILLED"]
    note = parents[0].tags["mlflow.note.content"]
    assert [name for name in ("r1", "r2", "r3") if f"[{name}]" in note] == ["r1", "r2"]
    assert autopsy("sync").out == "sync: 5 complete already\n"


def test_the_note_of_a_sweep_names_all_its_runs_when_one_is_shipped_late(
    autopsy, store, runs
):
    a_sweep(runs / "r1")
    for name in ("r2", "r3"):
        change(runs / name, sweep="s-1")
    Process().follow(runs / "r1", runs / "r2").end()
    autopsy("sync")
    (parent,) = [run for run in store.runs.values() if "sweep_parent" in run.tags]
    note = parent.tags["mlflow.note.content"]
    assert all(f"[{name}]" in note for name in ("r1", "r2", "r3"))


def test_a_run_shipped_again_leaves_the_others_in_the_note(autopsy, store, runs):
    a_sweep(runs / "r1")
    for name in ("r2", "r3"):
        change(runs / name, sweep="s-1")
    autopsy("sync", "r1", "r2")
    (parent,) = [run for run in store.runs.values() if "sweep_parent" in run.tags]
    before = parent.tags["mlflow.note.content"]
    assert [name for name in ("r1", "r2", "r3") if f"[{name}]" in before] == [
        "r1",
        "r2",
    ]
    store.runs[read_link(runs / "r2")["run_id"]].tags["record_sha256"] = "older"
    assert "1 shipped now" in autopsy("sync", "r2").out
    assert parent.tags["mlflow.note.content"] == before
    assert parent.endings == 1  # it keeps the time of its end


def test_a_sweep_that_goes_on_keeps_its_parent_open(autopsy, store, runs):
    a_sweep(runs / "r1", "running")
    autopsy("sync")
    (parent,) = [run for run in store.runs.values() if "sweep_parent" in run.tags]
    assert parent.status == "RUNNING"
