"""The MLflow store: made once under a lock, reached through one client.

Only the shipper's process, ``tracked`` and ``ui`` come here; MLflow takes seconds
to import.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

# Before the import: no telemetry from a tool that runs unattended, no progress bars
# in a pipe, and a server that is away may not hold a call for four minutes.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
os.environ.setdefault("PGCONNECT_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

from filelock import FileLock
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from runners.settings import SQLITE, StoreError, default_uri, redacted, sqlite_path

__all__ = [
    "artifact_folder",
    "default_uri",
    "ensure_experiment",
    "first_line",
    "give_up_early",
    "open_store",
]


# It tells every engine that it makes, on standard error.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)

_AWAY = re.compile(r"HTTPS?ConnectionPool\(host='([^']+)', port=(\d+)\)")
_WHY = re.compile(r"(?i)connection refused|timed out|connection reset|name or service")
_LOCK = 6_419_001  # of PostgreSQL, which wants a number; ours alone
_POOL = "MLFLOW_SQLALCHEMYSTORE_"
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": ("2", "0"),
    "MLFLOW_HTTP_REQUEST_TIMEOUT": ("20", "10"),
}


def open_store(uri: str) -> MlflowClient:
    """A client for the store; missing tables are made by one process alone.

    Several that meet on a fresh file or database otherwise run the same migrations at
    once, and all but one die of it.

    Raises:
        StoreError: the store cannot be reached or opened.
    """
    try:
        with _alone(uri):
            return _connect(uri)
    except Exception as error:
        raise StoreError(
            f"MLflow store {redacted(uri)}: expected one that opens, found: "
            f"{first_line(error).replace(uri, redacted(uri))}"
        ) from error


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """While it lasts nobody else makes the tables of a SQLite or PostgreSQL store.

    It also lets a store that is away say so at once: MLflow tries for minutes.
    """
    if uri.startswith(SQLITE):
        path = sqlite_path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(path.name + ".lock")):
            _look_into(path)
            yield
    elif uri.startswith("postgresql"):
        if not any(name.startswith(_POOL) for name in os.environ):
            # A run that waits for its next point holds no connection meanwhile.
            os.environ[f"{_POOL}POOLCLASS"] = "NullPool"
        # The lock is the database's own, as the others may be on other machines; it
        # ends with the transaction, and that with the connection.
        with create_engine(uri, poolclass=NullPool).connect() as connection:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            yield
    else:
        yield


def give_up_early() -> None:
    """Let a call to a server fail within ten seconds: who calls will call again."""
    for name, (default, early) in _PATIENCE.items():
        if os.environ[name] == default:  # else the user has chosen, and knows why
            os.environ[name] = early


def _connect(uri: str) -> MlflowClient:
    client = MlflowClient(tracking_uri=uri)
    client.search_experiments(max_results=1)  # opens the store, and migrates it
    return client


def _look_into(path: Path) -> None:
    """Let SQLite say at once what MLflow would try for minutes before it says so."""
    with closing(sqlite3.connect(path, timeout=20)) as database:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()


def first_line(error: BaseException) -> str:
    """The first line of an error, or its type if it says nothing.

    What a server that is away is said with takes 400 characters, most of them about
    the inside of the client.
    """
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    if away := _AWAY.search(line):
        why = _WHY.search(line)
        return f"{away[1]}:{away[2]}: {why[0].lower() if why else 'no connection'}"
    return line


def artifact_folder(uri: str, root: Path) -> Path:
    """Where a store on this machine, or one that is a mere database, has its files.

    MLflow's default would be a folder in whatever the working folder is.
    """
    beside = sqlite_path(uri).parent if uri.startswith(SQLITE) else root
    return (beside / "mlartifacts").resolve()


def ensure_experiment(client: MlflowClient, uri: str, name: str, root: Path) -> str:
    """The id of an experiment, made if missing; safe among several processes.

    Args:
        client: of the store.
        uri: the store.
        name: of the experiment.
        root: the folder of all runs, where a store that is a database on a server and
            keeps no files has its artifacts.
    """
    found = client.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    location = None
    if not uri.startswith("http"):
        location = artifact_folder(uri, root).as_uri()
    try:
        return client.create_experiment(name, artifact_location=location)
    except MlflowException:
        found = client.get_experiment_by_name(name)  # another process was faster
        if found is None:
            raise
        return found.experiment_id
