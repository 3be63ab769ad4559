"""Finished runs, the command in this or another process, and MLflow stores."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runners import cli
from runners.closing import RunResult
from runners.console import LastingConsole
from tests.runners.commands import AUTOPSY, Answer, health, run, wait_for


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> RunResult:
    """A finished run of 30 steps with a checkpoint, to be read and not changed."""
    root = tmp_path_factory.mktemp("finished")
    return run("steps=30", "name=healthy", "checkpoint.every=10", root=root)


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    """The same run folder, to be damaged, in ``tmp_path / "experiments"``."""
    return shutil.copytree(finished.folder, tmp_path / "experiments" / "healthy")


@pytest.fixture
def autopsy(capsys, monkeypatch, tmp_path) -> Callable[..., Answer]:
    """The command in this process, in ``tmp_path``; an error of ours comes out."""
    monkeypatch.chdir(tmp_path)
    # As outside of the tests, the console writes to where stdout then is.
    monkeypatch.setattr(cli, "_console", LastingConsole(width=200))

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["autopsy", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        return Answer(caught.value.code or 0, captured.out, captured.err)

    return call


# -- with a process of its own ---------------------------------------------------------


@pytest.fixture
def spawn(tmp_path):
    """Starts the command in ``tmp_path``; what still runs at the end is ended."""
    started = []

    def start(*arguments: object, **options) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [AUTOPSY, *map(str, arguments)],
            cwd=tmp_path,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()  # first politely: it may have processes of its own
    for process in started:
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture
def shell(spawn) -> Callable[..., Answer]:
    """The command in a process of its own, to its end."""

    def call(*arguments: object, **options) -> Answer:
        process = spawn(*arguments, **options)
        out, err = process.communicate(timeout=300)
        return Answer(process.returncode, out, err)

    return call


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture
def serve(spawn, port):
    """The command, once its server answers; the port is the test's."""

    def start(*arguments):
        # Nobody reads what the server says, and a full pipe would stop it.
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = spawn("ui", "--port", port, *arguments, **quiet)
        wait_for(lambda: health(f"127.0.0.1:{port}"), seconds=90)
        return server

    return start


# -- MLflow ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory) -> Path:
    """A SQLite store with its tables and nothing in it; making one takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    code = "import sys; from runners.store import open_store; open_store(sys.argv[1])"
    command = [sys.executable, "-c", code, f"sqlite:///{path}"]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture
def root(empty_store, tmp_path) -> Path:
    """``tmp_path / "experiments"`` with an empty store in it."""
    folder = tmp_path / "experiments"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


@pytest.fixture
def store(monkeypatch):
    """The store that every shipper of the test opens."""
    from runners import connection, owner  # MLflow takes seconds to import
    from tests.runners.memory_store import Store

    store = Store()
    monkeypatch.setattr(connection, "open_store", lambda uri: store)
    monkeypatch.setattr(connection, "ensure_experiment", lambda *_: "1")
    monkeypatch.setattr(owner, "DYING_SECONDS", 0.0)
    return store


@pytest.fixture
def process(store):
    from tests.runners.memory_store import Process

    return Process()
