"""The doctor on the runs below a root, and on what killed writes left there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from runners.doctor import runs as doctor_runs
from runners.doctor.check import OK, PROBLEM, WARNING
from runners.doctor.runs import check_runs
from runners.owner import owner

MLFLOW = {"kind": "mlflow", "uri": None, "experiment": "loss-autopsy"}
COMPLETE = {"run_id": "a" * 32, "complete": True}


def rows(root) -> dict:
    return {row.name: row for row in check_runs(root)}


def make(root, name="x", link=None, **facts):
    """A run folder as far as the doctor looks at it."""
    folder = root / name
    folder.mkdir(parents=True)
    manifest = {"schema_version": 1, "name": name, "status": "finished"}
    manifest |= {"owner": owner(), "tracking": MLFLOW, "config": {}} | facts
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if link is not None:
        (folder / "mlflow.json").write_text(json.dumps(link))
    return folder


def dead() -> dict:
    """The owner of a run whose process is gone."""
    code = "import json; from runners.owner import owner; print(json.dumps(owner()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return json.loads(done.stdout)


def test_a_root_without_runs_has_nothing_to_say(tmp_path):
    for root in (tmp_path, tmp_path / "none"):
        assert {row.answer for row in check_runs(root)} == {OK}


def test_a_real_run_without_tracking_is_sound(copied):
    assert {row.answer for row in check_runs(copied.parent)} == {OK}
    assert rows(copied.parent)["manifests"].found == "1 runs, all can be read"


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"schema_version": 99}'])
def test_a_damaged_manifest_is_named(tmp_path, content):
    make(tmp_path, "good", COMPLETE)
    folder = make(tmp_path, "bad", COMPLETE)
    (folder / "manifest.json").write_bytes(content)
    row = rows(tmp_path)["manifests"]
    assert (row.answer, row.found.split(":")[0]) == (PROBLEM, "1 damaged")
    assert str(folder / "manifest.json") in row.found


@pytest.mark.parametrize("record", ["journal.bin", "record.parquet"])
def test_a_record_without_a_manifest_is_named(tmp_path, record):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / record).write_bytes(b"")
    assert "no manifest.json" in rows(tmp_path)["manifests"].found
    assert rows(tmp_path)["manifests"].answer == PROBLEM


def test_many_names_are_counted(tmp_path):
    for number in range(7):
        make(tmp_path, f"r{number}")
    assert rows(tmp_path)["runs in MLflow"].found == (
        "7 not complete there: r0, r1, r2, r3, r4, and 2 more"
    )


# -- who lives -------------------------------------------------------------------------


def test_a_run_that_lives_is_left_alone(tmp_path):
    make(tmp_path, status="running")
    found = rows(tmp_path)
    assert (found["runs that run"].answer, found["runs that run"].found) == (OK, "1")
    assert found["runs in MLflow"].answer == OK


def test_a_run_whose_process_is_dead_is_named(tmp_path):
    make(tmp_path, status="running", owner=dead())
    found = rows(tmp_path)
    for name in ("runs that run", "runs in MLflow"):
        assert (found[name].answer, found[name].advice) == (WARNING, "`autopsy sync`")
    assert found["runs that run"].found == "1 whose process is dead: x"
    assert "runs of others" not in found


@pytest.mark.parametrize("who", [{"host": "elsewhere", "pid": 1}, None, 7])
def test_a_run_of_another_host_cannot_be_told(tmp_path, who):
    make(tmp_path, status="running", owner=who)
    found = rows(tmp_path)
    row = found["runs of others"]
    assert (row.answer, "cannot tell" in row.found) == (WARNING, True)
    assert ("elsewhere" in row.found) == isinstance(who, dict)
    assert found["runs that run"].answer == OK
    assert found["runs in MLflow"].answer == OK


# -- in MLflow -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "facts", "answer"),
    [
        (COMPLETE, {}, OK),
        (None, {}, WARNING),
        (COMPLETE | {"complete": False}, {}, WARNING),
        ({"run_id": "a" * 32}, {}, WARNING),
        ({"run_id": "short"}, {}, PROBLEM),
        (None, {"tracking": MLFLOW | {"kind": "none"}}, OK),
        (None, {"tracking": MLFLOW | {"kind": "offline"}}, WARNING),
        (None, {"tracking": None, "config": {"tracking": MLFLOW}}, WARNING),
        (None, {"tracking": None, "config": {"tracking": {"kind": "none"}}}, OK),
    ],
)
def test_what_is_not_complete_in_mlflow(tmp_path, link, facts, answer):
    make(tmp_path, link=link, **facts)
    row = rows(tmp_path)["runs in MLflow"]
    assert row.answer == answer
    assert ("autopsy sync" in row.advice) == (answer != OK)


# -- leftovers -------------------------------------------------------------------------


def leave(path, size=1000, age=120.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - age,) * 2)


def test_leftovers_are_named_with_their_size(tmp_path):
    leave(tmp_path / "x" / "manifest.json.1-2.tmp", 1_000_000)
    leave(tmp_path / "x" / "checkpoints" / "step-00000010.safetensors.1-2.tmp", 500_000)
    part = tmp_path / ".pulled" / "abc.17.part"
    leave(part / "record.parquet", 2_000_000)
    leave(part / "half.tmp", 500_000)
    os.utime(part, (time.time() - 120,) * 2)
    row = rows(tmp_path)["leftovers of killed writes"]
    assert row.answer == WARNING
    assert row.found.startswith("4.0 MB: ")
    names = row.found.partition(": ")[2].split(", ")
    assert sorted(names) == [
        ".pulled/abc.17.part",
        "x/checkpoints/step-00000010.safetensors.1-2.tmp",
        "x/manifest.json.1-2.tmp",
    ]


def test_what_may_still_be_written_is_no_leftover(tmp_path):
    leave(tmp_path / "x" / "manifest.json.1-2.tmp", age=0)
    part = tmp_path / ".pulled" / "abc.17.part"
    leave(part / "record.parquet", age=0)
    os.utime(part, (time.time() - 120,) * 2)
    leave(tmp_path / "x" / "not.part")
    assert rows(tmp_path)["leftovers of killed writes"].answer == OK


def test_a_file_that_goes_while_it_is_looked_at_is_none(tmp_path):
    assert doctor_runs._age_and_size(tmp_path / "gone") == (0.0, 0)


def test_a_folder_that_cannot_be_read_is_a_problem(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    row = rows(tmp_path)["leftovers of killed writes"]
    assert (row.answer, str(tmp_path / "closed") in row.found) == (PROBLEM, True)
