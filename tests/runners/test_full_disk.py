"""A disk that is full, or gone: one error, and no recorded step lost."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.history import load
from minigpt.records import InputError
from runners import closing
from runners.compose import compose_config
from runners.execution import execute
from runners.journal import JournalWriter
from tests.runners.commands import NO_TRACKER, run
from tests.runners.stored import expected_points, mlflow_points, mlflow_runs

OPEN = {"manifest.json", "config.yaml", "vocabulary.json", "checkpoints"}


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def manifest_of(folder) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def test_a_journal_without_room_ends_the_run_and_keeps_what_was_written(
    tmp_path, monkeypatch
):
    real, calls = JournalWriter._write, []

    def write(writer, data):
        calls.append(len(data))
        return no_room() if len(calls) > 3 else real(writer, data)

    monkeypatch.setattr(JournalWriter, "_write", write)
    monkeypatch.setattr("runners.journal.MAX_RECORDS", 4)
    with pytest.raises(OSError, match="No space left on device"):
        run("steps=30", "name=x", "checkpoint.every=0", root=tmp_path)
    history = load(tmp_path / "x")
    assert len(history) == 8  # the header and two blocks had room
    assert manifest_of(tmp_path / "x")["status"] == "failed"


def test_a_checkpoint_without_room_ends_the_run_and_makes_room_for_the_record(
    tmp_path, monkeypatch
):
    real = os.fsync

    def full(descriptor):
        """Written in part, as a full disk has it, where it is a checkpoint."""
        if "/checkpoints/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            no_room()
        real(descriptor)

    monkeypatch.setattr("minigpt.atomic.os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        run("steps=30", "name=x", "checkpoint.every=10", root=tmp_path)
    assert str(tmp_path / "x") in caught.value.filename
    assert list((tmp_path / "x" / "checkpoints").iterdir()) == []
    assert len(load(tmp_path / "x")) == 20
    manifest = manifest_of(tmp_path / "x")
    assert manifest["status"] == "failed"
    assert "No space left" in manifest["error"]


def test_a_failing_last_checkpoint_is_no_finished_run(tmp_path, monkeypatch):
    monkeypatch.setattr("minigpt.checkpoint.write_atomically", no_room)
    with pytest.raises(OSError, match="No space left"):
        run("steps=10", "name=x", "checkpoint.every=10", root=tmp_path)
    assert manifest_of(tmp_path / "x")["status"] == "failed"
    assert len(load(tmp_path / "x")) == 10


def test_no_room_for_the_closed_form_leaves_the_journal_as_the_record(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(closing, "write_parquet", no_room)
    with pytest.raises(OSError, match="No space left"):
        run("steps=5", "name=x", root=tmp_path)
    assert {path.name for path in (tmp_path / "x").iterdir()} == OPEN | {"journal.bin"}
    assert len(load(tmp_path / "x")) == 5
    assert manifest_of(tmp_path / "x")["status"] == "failed"


def test_no_room_for_the_last_manifest_loses_no_step(tmp_path, monkeypatch):
    monkeypatch.setattr(closing, "write_manifest", no_room)
    results = []
    config = compose_config(["steps=5", f"paths.root={tmp_path}", "tracking=none"])
    with pytest.raises(OSError, match="No space left"):
        execute(config, NO_TRACKER, lambda *_: None, on_end=results.append)
    assert results[0].status == "failed"
    history = load(results[0].folder)
    assert len(history) == 5
    assert "the run's status is running" in history.notes


def test_a_folder_removed_while_it_trains_is_an_error_of_one_line(tmp_path):
    def remove(name, step, steps, loss):
        if step == 1:
            shutil.rmtree(tmp_path / name)

    with pytest.raises((OSError, InputError)) as caught:
        run("steps=3", "checkpoint.every=0", root=tmp_path, on_step=remove)
    assert "\n" not in str(caught.value)


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from tests.runners.commands import run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
run("steps=400", "name=x", "checkpoint.every=0", root=Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_the_systems_own_limit_on_files_is_met_like_a_full_disk(tmp_path):
    """Not simulated: the kernel refuses to let the journal grow (EFBIG)."""
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", _LIMITED, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | path
    )
    assert f"File too large: '{tmp_path / 'x' / 'journal.bin'}'" in done.stderr
    assert 50 < len(load(tmp_path / "x")) < 400
    assert manifest_of(tmp_path / "x")["status"] == "failed"


@pytest.fixture
def small_disk(tmp_path, size):
    """A disk of so many megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can only be mounted by root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "size"), [(0, 3), (100, 7)], ids=["journal", "checkpoint"]
)
def test_a_disk_that_fills_ends_the_run_in_one_line(
    shell, small_disk, root, tmp_path, every
):
    """The store is on another disk, so that MLflow can be told."""
    answer = shell(
        "train", "name=x", "steps=30000", f"checkpoint.every={every}",
        f"paths.root={small_disk}", f"tracking.uri=sqlite:///{root}/mlflow.db",
    )  # fmt: skip
    assert answer.code == 1
    (line,) = answer.err.splitlines()
    assert line.startswith(f"autopsy: {small_disk}/x")
    assert line.endswith("read and write it, found: No space left on device")
    (flushed,) = re.findall(r"x: failed, (\d+) steps", answer.out)
    folder = small_disk / "x"
    assert manifest_of(folder)["status"] == "failed"
    assert "No space left on device" in manifest_of(folder)["error"]
    assert len(load(folder)) == int(flushed) > 300
    assert mlflow_runs(root) == {"x": "FAILED"}
    assert mlflow_points(root, "x") == expected_points(folder)
    # with room again it goes on, also elsewhere
    moved = shutil.copytree(folder, tmp_path / "room" / "x")
    more = int(flushed) + 50
    done = shell("train", f"resume={moved}", f"steps={more}", "tracking=none")
    assert (done.code, len(load(moved))) == (0, more)
