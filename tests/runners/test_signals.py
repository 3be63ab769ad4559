"""Ctrl-C, SIGTERM and SIGKILL: nothing lost, folder and MLflow closed as killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time

import pytest

from analysis.history import load
from runners import closing
from runners.signals import Terminated, deferred, exit_code, sigterm_raises
from tests.runners.commands import run, wait_for
from tests.runners.stored import expected_steps, mlflow_runs, shipped_steps


def test_sigterm_raises_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), sigterm_raises():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("numbers", "raised"),
    [
        ([signal.SIGINT], KeyboardInterrupt),
        ([signal.SIGTERM], Terminated),
        ([signal.SIGTERM, signal.SIGINT, signal.SIGINT], Terminated),
    ],
)
def test_a_deferred_block_is_done_before_the_signal_counts(numbers, raised):
    done = []

    def work():
        with deferred():
            for number in numbers:
                signal.raise_signal(number)
            done.append(True)

    with pytest.raises(raised):
        work()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_of_a_deferred_block_does_not_swallow_the_signal():
    def work():
        with deferred():
            signal.raise_signal(signal.SIGINT)
            raise OSError("full")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, OSError)


def test_without_a_signal_a_deferred_block_is_a_block():
    with deferred():
        pass
    with pytest.raises(OSError, match="full"), deferred():
        raise OSError("full")


def test_in_a_thread_no_handler_is_changed():
    found = []

    def work():
        with sigterm_raises(), deferred():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


def test_exit_codes():
    assert [exit_code(one()) for one in (KeyboardInterrupt, Terminated)] == [130, 143]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_run_closes_waits_until_it_is_closed(
    tmp_path, monkeypatch, number
):
    real = closing.write_parquet

    def impatient(*arguments):
        for _ in range(3):
            signal.raise_signal(number)
        return real(*arguments)

    monkeypatch.setattr(closing, "write_parquet", impatient)
    with pytest.raises((KeyboardInterrupt, Terminated)):
        run("steps=5", "name=x", root=tmp_path)
    manifest = json.loads((tmp_path / "x" / "manifest.json").read_text())
    assert (manifest["status"], manifest["record"]["rows"]) == ("finished", 5)
    assert load(tmp_path / "x").notes == []


# -- with a shipper and a store --------------------------------------------------------


def manifest_of(folder) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def train_until_tracked(spawn, root, name="x", *choices):
    """A training command whose shipper follows the run and has read some of it."""
    process = spawn("train", *choices)
    wait_for(lambda: (root / name / "mlflow.json").is_file())
    wait_for(lambda: shipped_steps(root, name))
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [(signal.SIGINT, 130, "KeyboardInterrupt"), (signal.SIGTERM, 143, "Terminated")],
)
def test_a_signal_closes_the_run_as_killed_everywhere(
    spawn, root, number, code, reason
):
    process = train_until_tracked(spawn, root, "x", "name=x", "steps=20000")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "")
    manifest = manifest_of(root / "x")
    assert (manifest["status"], manifest["error"]) == ("killed", reason)
    rows = manifest["record"]["rows"]
    assert f"experiments/x: killed, {rows} steps" in out
    assert len(load(root / "x")) == rows > 50
    assert mlflow_runs(root) == {"x": "KILLED"}
    assert shipped_steps(root, "x") == expected_steps(root / "x")


@pytest.mark.slow
def test_sigkill_is_noticed_and_every_whole_block_shipped(spawn, root):
    process = train_until_tracked(spawn, root, "x", "name=x", "steps=20000")
    wait_for(lambda: manifest_of(root / "x")["status"] == "running")
    process.kill()
    process.communicate()
    wait_for(lambda: mlflow_runs(root)["x"] == "KILLED", seconds=30)
    manifest = wait_for(
        lambda: (m := manifest_of(root / "x"))["status"] == "killed" and m
    )
    assert manifest["record"]["rows"] == len(load(root / "x")) > 50
    assert shipped_steps(root, "x") == expected_steps(root / "x")


@pytest.mark.slow
def test_sigkill_in_a_sweep_closes_its_parent_too(spawn, root, autopsy):
    choices = ("-m", "name=a,b,c", "steps=20000,20001", "checkpoint.every=0")
    process = train_until_tracked(spawn, root, "a", *choices)
    process.kill()
    process.communicate()
    wait_for(lambda: set(mlflow_runs(root).values()) == {"KILLED"}, seconds=30)
    assert len(mlflow_runs(root)) == 2
    (sweep,) = (root / ".sweeps").iterdir()
    assert "killed (the process died" in autopsy("show", sweep.name).out


@pytest.mark.slow
def test_a_killed_shipper_does_not_end_the_training(spawn, root):
    process = train_until_tracked(spawn, root, "x", "name=x", "steps=1500")
    (shipper,) = children(process.pid)
    os.kill(shipper, signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert "experiments/x: finished, 1500 steps" in out
    assert "not complete in MLflow: x: the shipper ended with -9" in out
    assert manifest_of(root / "x")["status"] == "finished"
    assert len(load(root / "x")) == 1500


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


@pytest.mark.slow
def test_ctrl_c_while_waiting_for_the_shipper_leaves_it_to_finish(spawn, root):
    """The store is locked, so the shipper is still busy when training is over."""
    process = train_until_tracked(spawn, root, "x", "name=x", "steps=700")
    database = sqlite3.connect(root / "mlflow.db", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    wait_for((root / "x" / "dashboard.html").is_file)
    time.sleep(1)  # once its page is drawn the command only waits
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    database.execute("ROLLBACK")
    database.close()
    assert process.returncode == 130
    assert "not waited for; the shipper goes on by itself" in out
    wait_for(lambda: mlflow_runs(root) == {"x": "FINISHED"})
    assert shipped_steps(root, "x") == expected_steps(root / "x")


@pytest.mark.slow
def test_a_second_run_of_a_name_starts_beside_the_first(spawn, shell, root):
    process = train_until_tracked(spawn, root, "x", "name=x", "steps=20000")
    answer = shell("train", "name=x", "steps=5")
    assert answer.code == 0
    assert "experiments/x-2: finished, 5 steps" in answer.out
    assert manifest_of(root / "x")["status"] == "running"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert mlflow_runs(root) == {"x": "KILLED", "x-2": "FINISHED"}
