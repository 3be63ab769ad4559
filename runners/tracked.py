"""Runs as MLflow knows them, searched and fetched: only this asks MLflow for runs."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.history import JOURNAL, MANIFEST, PARQUET, read_manifest
from analysis.parquet import sha256_of
from minigpt.records import InputError
from runners.folders import VOCABULARY
from runners.settings import StoreError, check_uri, default_uri

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

PULLED = ".pulled"
_FETCHED = (MANIFEST, PARQUET, JOURNAL, VOCABULARY)


@dataclass(frozen=True)
class Place:
    """Where runs are looked up.

    Attributes:
        root: the folder of all runs.
        uri: the MLflow store; None is the SQLite file in the root.

    Raises:
        InputError: the uri is no address of a store.
    """

    root: Path
    uri: str | None = None

    def __post_init__(self) -> None:
        if self.uri is not None:
            check_uri(self.uri, "--uri")


def store_uri(place: Place) -> str | None:
    """The store's address, or None for a default store that does not exist yet."""
    if place.uri:
        return place.uri
    return default_uri(place.root) if (place.root / "mlflow.db").is_file() else None


def _client(place: Place) -> MlflowClient:
    from runners.store import open_store

    uri = store_uri(place)
    if uri is None:
        raise StoreError(
            f"MLflow store: expected {place.root / 'mlflow.db'}, found none; train a "
            "run first"
        )
    return open_store(uri)


def search(place: Place, query: str, experiment: str | None = None) -> list[Run]:
    """Runs of the store that meet an MLflow filter, newest first.

    Args:
        place: where.
        query: in MLflow's own words.
        experiment: name of the MLflow experiment; by default all.

    Raises:
        StoreError: no store, or one that does not open.
        InputError: no such experiment, or a filter that MLflow does not understand.
    """
    from mlflow.exceptions import MlflowException

    from runners.store import first_line

    client = _client(place)
    experiments = {e.name: e.experiment_id for e in client.search_experiments()}
    if experiment and experiment not in experiments:
        raise InputError(
            f"MLflow experiment: expected one of {', '.join(experiments)}; "
            f"got {experiment!r}"
        )
    chosen = [experiments[experiment]] if experiment else list(experiments.values())
    found: list[Run] = []
    token = None
    while token != "":
        try:
            page = client.search_runs(
                chosen,
                query,
                order_by=["attributes.start_time DESC"],
                page_token=token,
            )
        except MlflowException as error:
            raise InputError(f"MLflow filter {query}: {first_line(error)}") from error
        found += page
        token = page.token or ""
    return found


def find(run_id: str, place: Place) -> Run:
    """One run by its id.

    Raises:
        StoreError: no store, or one that does not open.
        InputError: the store has no such run.
    """
    from mlflow.exceptions import MlflowException

    from runners.store import first_line

    try:
        return _client(place).get_run(run_id)
    except MlflowException as error:
        raise InputError(
            f"run {run_id}: expected a run of the MLflow store, found: "
            f"{first_line(error)}"
        ) from error


def find_by_config(place: Place, config_hash: str, code_hash: str) -> Run | None:
    """The newest finished run of this config, made by this code; None if missing.

    Raises:
        StoreError: no store, or one that does not open.
        InputError: there are such runs, but of other code.
    """
    query = f"tags.config_hash = '{config_hash}' and attributes.status = 'FINISHED'"
    runs = search(place, query)
    # a run whose replay differed from its record is the record of no config
    runs = [run for run in runs if "replay_differs" not in run.data.tags]
    current = [run for run in runs if run.data.tags.get("code_hash") == code_hash]
    if current:
        return current[0]
    if runs:
        names = ", ".join(run.info.run_name for run in runs)
        raise InputError(f"stale: made by other code than this: {names}")
    return None


def pull(run_id: str, place: Place) -> Path:
    """Fetch a run's artifacts from MLflow into a folder that ``load`` reads.

    Fetched once and again if what is there is not what MLflow names by its hash.

    Raises:
        StoreError: no store, or one that does not open.
        InputError: no such run, or its artifacts are not those of a recorded run.
        OSError: the root cannot be written.
    """
    run = find(run_id, place)
    target = place.root / PULLED / run_id
    expected = run.data.tags.get("record_sha256")
    if _problem(target, expected):
        part = target.with_name(f"{run_id}.{os.getpid()}.part")
        part.mkdir(parents=True)
        try:
            _download(_client(place), run_id, part)
            if problem := _problem(part, expected):
                raise InputError(f"run {run_id}: {problem}")
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
        except OSError:
            if _problem(target, expected):  # else another process was faster
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def attach(path: Path, run_id: str, place: Place) -> None:
    """Upload a file as an artifact of a run, and link it in the run's note.

    Raises:
        StoreError: no store, or one that does not open.
        InputError: no such run, or it does not take the file.
    """
    from mlflow.exceptions import MlflowException

    from runners.attachment import attach_file
    from runners.store import first_line

    run = find(run_id, place)
    try:
        attach_file(_client(place), run, path)
    except (MlflowException, OSError) as error:
        raise InputError(
            f"{path.name}: expected a place among the artifacts of run {run_id}, "
            f"found: {first_line(error)}"
        ) from error


def _download(client: MlflowClient, run_id: str, target: Path) -> None:
    from mlflow.exceptions import MlflowException

    from runners.store import first_line

    try:
        present = {artifact.path for artifact in client.list_artifacts(run_id)}
        for name in _FETCHED:
            if name in present:
                client.download_artifacts(run_id, name, str(target))
    except MlflowException as error:
        raise InputError(
            f"run {run_id}: expected its artifacts, found: {first_line(error)}"
        ) from error


def _problem(folder: Path, expected: str | None) -> str:
    """What is wrong with fetched artifacts, or nothing."""
    if not (folder / MANIFEST).is_file():
        return f"expected the artifacts of a recorded run, found no {MANIFEST}"
    found: Any = (read_manifest(folder).get("record") or {}).get("sha256")
    if expected and found == expected:
        path = folder / PARQUET
        found = sha256_of(path) if path.is_file() else f"no {PARQUET}"
    if expected == found:
        return ""
    return f"expected the record {expected} that MLflow names, found {found}"
