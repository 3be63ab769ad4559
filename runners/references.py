"""From a reference to run folders: the only code that asks MLflow for runs.

A reference is a path, a run name, an MLflow run id or a sweep id. A folder on this
machine is preferred; what is only in MLflow is fetched, hash and all.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.history import MANIFEST, PARQUET, read_manifest
from minigpt.records import InputError
from runners.folders import MLFLOW, SWEEP_FILE, SWEEPS, run_folders

if TYPE_CHECKING:
    from mlflow.entities import Run

PULLED = ".pulled"
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_PLAIN = re.compile(r"[A-Za-z0-9._ -]+")


@dataclass(frozen=True)
class Place:
    """Where references are looked up.

    Attributes:
        root: the folder of all runs.
        uri: the MLflow store; None is the SQLite file in the root.
    """

    root: Path
    uri: str | None = None


def resolve(reference: str, place: Place) -> list[Path]:
    """The run folders that a reference means: one, or those of a sweep.

    Raises:
        InputError: nothing by that name, or more than one run; lists what there is.
    """
    path = Path(reference)
    if (path / MANIFEST).is_file():
        return [path]
    if path.is_dir() and ("/" in reference or reference.startswith(".")):
        read_manifest(path)  # says what a run folder would have
    if not _PLAIN.fullmatch(reference) or reference.startswith("."):
        raise InputError(
            f"run {reference!r}: expected a run folder, name, MLflow run id or sweep "
            "id, found no such folder"
        )
    if (place.root / reference / MANIFEST).is_file():
        return [place.root / reference]
    if (place.root / SWEEPS / reference / SWEEP_FILE).is_file():
        return _sweep_folders(reference, place)
    if _RUN_ID.fullmatch(reference):
        return [_by_run_id(reference, place)]
    return _by_name(reference, place)


def resolve_one(reference: str, place: Place) -> Path:
    """The one run folder that a reference means.

    Raises:
        InputError: as ``resolve``, and for a sweep of several runs.
    """
    found = resolve(reference, place)
    if len(found) != 1:
        names = ", ".join(folder.name for folder in found) or "none"
        raise InputError(
            f"{reference}: expected one run, found a sweep of {len(found)}: {names}"
        )
    return found[0]


def _sweep_folders(sweep: str, place: Place) -> list[Path]:
    text = (place.root / SWEEPS / sweep / SWEEP_FILE).read_text()
    names = [job["folder"] for job in json.loads(text)["jobs"] if job["folder"]]
    return [place.root / name for name in names]


def _by_run_id(run_id: str, place: Place) -> Path:
    for folder in run_folders(place.root):
        link = folder / MLFLOW
        if link.is_file() and json.loads(link.read_bytes())["run_id"] == run_id:
            return folder
    return pull(run_id, place)


def _by_name(name: str, place: Place) -> list[Path]:
    runs = search(place, f"attributes.run_name = '{name}'") if _store(place) else []
    if len(runs) == 1:
        return [pull(runs[0].info.run_id, place)]
    if runs:
        listed = ", ".join(run.info.run_id for run in runs)
        raise InputError(f"run {name}: expected one run, found {len(runs)}: {listed}")
    names = [folder.name for folder in run_folders(place.root)]
    close = difflib.get_close_matches(name, names, n=5) or names[:10]
    hint = f"close to it: {', '.join(close)}" if close else "there are none"
    raise InputError(f"run {name}: no such run below {place.root}; {hint}")


def _store(place: Place) -> str | None:
    """The store's address, or None for a default store that does not exist yet."""
    if place.uri:
        return place.uri
    path = place.root.resolve() / "mlflow.db"
    return f"sqlite:///{path}" if path.is_file() else None


def search(place: Place, query: str) -> list[Run]:
    """Runs of the store that meet an MLflow filter, newest first.

    Raises:
        InputError: no store, or one that does not open.
    """
    from runners.store import open_store

    uri = _store(place)
    if uri is None:
        raise InputError(
            f"MLflow store: expected {place.root / 'mlflow.db'}, found none; train "
            "a run first"
        )
    client = open_store(uri)
    experiments = [e.experiment_id for e in client.search_experiments()]
    found: list[Run] = []
    token = None
    while True:
        page = client.search_runs(
            experiments,
            query,
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        found += page
        token = page.token
        if not token:
            return found


def find_by_config(place: Place, config_hash: str, code_hash: str) -> Run | None:
    """The newest finished run of this config, made by this code; None if missing.

    Raises:
        InputError: there are such runs, but of other code.
    """
    query = f"tags.config_hash = '{config_hash}' and attributes.status = 'FINISHED'"
    runs = search(place, query)
    current = [run for run in runs if run.data.tags.get("code_hash") == code_hash]
    if current:
        return current[0]
    if runs:
        names = ", ".join(run.info.run_name for run in runs)
        raise InputError(f"stale: made by other code than this: {names}")
    return None


def pull(run_id: str, place: Place) -> Path:
    """Fetch a run's artifacts from MLflow into a folder that ``load`` reads.

    Fetched once; ``load`` checks the record against the manifest's hash, and this
    checks it against the hash that MLflow holds as a tag.

    Raises:
        InputError: no such run, or its artifacts are not those of a recorded run.
    """
    from mlflow.exceptions import MlflowException

    from runners.store import open_store

    uri = _store(place)
    if uri is None:
        raise InputError(f"run {run_id}: no MLflow store below {place.root}")
    client = open_store(uri)
    target = place.root / PULLED / run_id
    try:
        run = client.get_run(run_id)
        for name in (MANIFEST, PARQUET):
            if not (target / name).is_file():
                target.mkdir(parents=True, exist_ok=True)
                client.download_artifacts(run_id, name, str(target))
    except (MlflowException, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"run {run_id}: expected a recorded run, found: {reason}"
        ) from error
    _check_hash(run.data.tags, read_manifest(target), target)
    return target


def _check_hash(tags: dict[str, str], manifest: dict[str, Any], target: Path) -> None:
    expected = tags.get("record_sha256")
    found = (manifest.get("record") or {}).get("sha256")
    if expected != found:
        raise InputError(
            f"{target}: expected the record {expected} that MLflow names, found {found}"
        )
