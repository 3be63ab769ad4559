"""The MLflow store: made once under a lock, reached through one client.

Only the shipper's process, ``references`` and ``ui`` come here; MLflow takes seconds
to import.
"""

from __future__ import annotations

import os
from pathlib import Path

# Before the import: no telemetry from a tool that runs unattended, no progress bars
# in a pipe, and a server that is away may not hold a call for four minutes.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")

from filelock import FileLock
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from minigpt.records import InputError

_SQLITE = "sqlite:///"


def default_uri(root: Path) -> str:
    """The SQLite file in the folder of all runs."""
    return f"{_SQLITE}{root.resolve() / 'mlflow.db'}"


def open_store(uri: str) -> MlflowClient:
    """A client for the store; a missing SQLite file is made under a lock.

    Four processes that meet on a fresh file otherwise run the same migrations at
    once, and all but one die of it.

    Raises:
        InputError: the store cannot be reached or opened.
    """
    try:
        if not uri.startswith(_SQLITE):
            return _connect(uri)
        path = Path(uri.removeprefix(_SQLITE))
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(path.name + ".lock")):
            return _connect(uri)
    except (MlflowException, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"tracking store: expected one that opens, found: {reason}"
        ) from error


def _connect(uri: str) -> MlflowClient:
    client = MlflowClient(tracking_uri=uri)
    client.search_experiments(max_results=1)  # opens the store, and migrates it
    return client


def ensure_experiment(client: MlflowClient, uri: str, name: str) -> str:
    """The id of an experiment, made if missing; safe among several processes."""
    found = client.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    location = None
    if uri.startswith(_SQLITE):
        # MLflow's default would be a folder in whatever the working folder is.
        folder = Path(uri.removeprefix(_SQLITE)).parent / "mlartifacts"
        location = folder.resolve().as_uri()
    try:
        return client.create_experiment(name, artifact_location=location)
    except MlflowException:
        found = client.get_experiment_by_name(name)  # another process was faster
        if found is None:
            raise
        return found.experiment_id
