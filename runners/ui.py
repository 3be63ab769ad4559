"""``autopsy ui``: MLflow's own UI over the store of a root, on this machine only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

from mlflow.tracking import MlflowClient
from rich.console import Console

from minigpt.records import InputError
from runners.mlflow_view import address, experiments_with_view
from runners.report import say
from runners.signals import INTERRUPTS
from runners.store import artifact_folder, open_store
from runners.tracked import Place, store_uri

HOST = "127.0.0.1"
STOP_SECONDS = 10.0


def serve(place: Place, port: int, console: Console) -> int:
    """Serve until Ctrl-C; the exit code of the server.

    Raises:
        InputError: there is nothing to show yet, or the port is not free.
        Terminated: after the server was ended.
    """
    uri = store_uri(place)
    if uri is None:
        raise InputError(
            f"MLflow store: expected {place.root / 'mlflow.db'}, found none; train a "
            "run first"
        )
    _require_free(port)
    client = open_store(uri)
    say(console, f"http://{HOST}:{port} (Ctrl-C ends it)")
    for line in _views(client, f"http://{HOST}:{port}/"):
        say(console, line)
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    command += ["--host", HOST, "--port", str(port)]
    # Whoever tracks through this server is on this machine too; a place that only the
    # server can reach would keep others from syncing into the same experiment.
    files = artifact_folder(uri, place.root)
    command += ["--default-artifact-root", files.as_uri()]
    command += ["--artifacts-destination", str(files)]
    server = subprocess.Popen(  # noqa: S603 - no shell; the port is a number
        command, env=_environment(uri), start_new_session=True
    )
    try:
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        _stop(server)


def _views(client: MlflowClient, server: str) -> Iterator[str]:
    """Where the run pages open with the columns and charts that tell runs apart."""
    for name, experiment_id in experiments_with_view(client):
        yield f"{name}, its runs as a table: {server}{address(experiment_id)}"
        charts = address(experiment_id, charts=True)
        yield f"{name}, their curves: {server}{charts}"


def _environment(uri: str) -> dict[str, str]:
    return os.environ | {
        "MLFLOW_BACKEND_STORE_URI": uri,  # a process list would show its password
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight more processes, unused
        "PYTHONSAFEPATH": "1",  # no package of the working folder stands in for MLflow
    }


def _require_free(port: int) -> None:
    if not 1 <= port <= 65535:
        raise InputError(f"--port: expected 1 to 65535, got {port}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise InputError(
                f"--port: expected a free port of {HOST}, found {port}: "
                f"{error.strerror}"
            ) from error


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and all that it started, also if somebody is impatient."""
    try:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(STOP_SECONDS)
    except (ProcessLookupError, subprocess.TimeoutExpired, *INTERRUPTS):
        pass
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
