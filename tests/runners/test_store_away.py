"""A server that stops, stays silent or was never there: training does not notice."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from analysis.history import load
from analysis.parquet import sha256_of
from minigpt.records import TIME_WALL
from runners.folders import read_link
from tests.runners.commands import wait_for
from tests.runners.stored import expected_points, mlflow_points, mlflow_runs

pytestmark = pytest.mark.slow

STEPS = 4000


@pytest.fixture
def tracked(port):
    """The choice that sends a run's curves to the test's server."""
    return f"tracking.uri=http://127.0.0.1:{port}"


@pytest.fixture
def server_root(root, tmp_path):
    """Where the server keeps its store; the runs are kept elsewhere."""
    return root.rename(tmp_path / "server")


def stop(server):
    server.terminate()
    server.wait(timeout=30)


def synced(shell, *arguments):
    answer = shell("sync", *arguments)
    assert (answer.code, answer.err) == (0, ""), answer.out
    return answer.out


@pytest.fixture
def silent(port):
    """Makes the port of the test one that takes connections and never answers."""
    held = []

    def accept(listener):
        while True:
            try:
                held.append(listener.accept()[0])
            except OSError:
                return

    def start():
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        held.append(listener)

    def end():
        for one in held:
            one.close()

    start.end = end
    yield start
    end()


def check_complete(tmp_path, server_root):
    folder = tmp_path / "experiments" / "x"
    assert len(load(folder)) == STEPS
    assert mlflow_runs(server_root) == {"x": "FINISHED"}
    assert mlflow_points(server_root, "x") == expected_points(folder)
    assert read_link(folder)["complete"]
    (record,) = (server_root / "mlartifacts").rglob("record.parquet")
    assert sha256_of(record) == sha256_of(folder / "record.parquet")


@pytest.mark.parametrize("how", ["stopped", "silent"])
def test_a_server_lost_in_the_middle_costs_nothing(
    serve, spawn, shell, silent, tracked, server_root, tmp_path, how
):
    server = serve("--root", server_root)
    process = spawn("train", "name=x", f"steps={STEPS}", tracked)
    wait_for(lambda: mlflow_runs(server_root) and mlflow_points(server_root, "x"))
    stop(server)
    if how == "silent":
        silent()
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert f"x: finished, {STEPS} steps" in out
    assert "not complete in MLflow: x: " in out
    assert "`autopsy sync` completes MLflow" in out
    recorded = load(tmp_path / "experiments" / "x")
    assert len(recorded) == STEPS
    assert np.diff(recorded.scalar(TIME_WALL)).max() < 2.0  # no step waited for it
    answer = shell("sync")
    assert answer.code == 1
    assert "not synced: x: " in answer.out
    silent.end()
    serve("--root", server_root)
    assert "1 shipped now" in synced(shell)
    check_complete(tmp_path, server_root)
    before = mlflow_points(server_root, "x")
    assert "1 complete already" in synced(shell)
    assert mlflow_points(server_root, "x") == before


def test_a_server_that_comes_back_in_time_is_used_again(
    serve, spawn, tracked, server_root, tmp_path
):
    server = serve("--root", server_root)
    process = spawn("train", "name=x", "steps=20000", tracked)
    wait_for(lambda: mlflow_runs(server_root) and mlflow_points(server_root, "x"))
    stop(server)
    time.sleep(1.0)
    seen = len(mlflow_points(server_root, "x"))
    serve("--root", server_root)
    wait_for(lambda: len(mlflow_points(server_root, "x")) > seen, seconds=60)
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "not complete" not in out
    assert mlflow_runs(server_root) == {"x": "KILLED"}
    folder = tmp_path / "experiments" / "x"
    assert mlflow_points(server_root, "x") == expected_points(folder)


@pytest.mark.parametrize("how", ["nobody", "silent"])
def test_a_server_that_was_never_there_is_one_line(
    shell, silent, tracked, tmp_path, how
):
    if how == "silent":
        silent()
    began = time.monotonic()
    answer = shell("train", "name=x", "steps=200", tracked)
    assert time.monotonic() - began < 60
    assert (answer.code, answer.err) == (0, "")
    assert "x: finished, 200 steps" in answer.out
    assert "not complete in MLflow: x: " in answer.out
    assert len(load(tmp_path / "experiments" / "x")) == 200
