"""From a reference to run folders.

A reference is a path, a run name, an MLflow run id, a sweep id, or an experiment of
MLflow and a filter, ``loss-autopsy: params.clip = '0.5'``. A folder on this machine
is preferred; what is only in MLflow is fetched, hash and all.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.history import MANIFEST, read_manifest
from minigpt.records import InputError
from runners.folders import (
    RUN_ID,
    SWEEP_FILE,
    SWEEPS,
    read_link,
    run_folders,
    sweep_folders,
)
from runners.tracked import Place, find, pull, search, store_uri

if TYPE_CHECKING:
    from mlflow.entities import Run

_PLAIN = re.compile(r"[A-Za-z0-9._ -]{1,200}")
_FILTERED = re.compile(r"(?P<experiment>[^:/]+):\s*(?P<filter>.*(?:[=<>]|LIKE|IN).*)")


def resolve(reference: str, place: Place) -> list[Path]:
    """The run folders that a reference means: one, or those of a sweep or filter.

    Raises:
        InputError: nothing by that name, or more than one thing; lists what there is.
    """
    filtered = _FILTERED.fullmatch(reference)
    path, named = Path(reference), place.root / reference
    if filtered:
        return _by_filter(reference, filtered["experiment"], filtered["filter"], place)
    if "/" in reference or reference in (".", ".."):
        return [_checked(path)]
    if not _PLAIN.fullmatch(reference) or reference.startswith("."):
        raise InputError(
            f"run {reference!r:.200}: expected a run folder, a name, an MLflow run "
            "id, a sweep id or `experiment: filter`, found none of them"
        )
    found = [folder for folder in (named, path) if (folder / MANIFEST).is_file()]
    if len({folder.resolve() for folder in found}) > 1:
        raise _ambiguous(reference, [f"{one.parent}/{one.name}" for one in found])
    if found:
        return found[:1]
    if (place.root / SWEEPS / reference / SWEEP_FILE).is_file():
        return _by_sweep(reference, place)
    if RUN_ID.fullmatch(reference):
        return _by_run_id(reference, place)
    return _by_name(reference, place)


def resolve_one(reference: str, place: Place) -> Path:
    """The one run folder that a reference means.

    Raises:
        InputError: as ``resolve``, and for several runs.
    """
    found = resolve(reference, place)
    if len(found) != 1:
        raise _ambiguous(reference, [folder.name for folder in found])
    return found[0]


def _checked(path: Path) -> Path:
    try:
        read_manifest(path)  # says what is missing
    except OSError as error:  # a path that the system does not take
        raise InputError(
            f"{path!s:.200}: expected a run folder, found: {error.strerror}"
        ) from None
    return path


def _ambiguous(reference: str, found: Sequence[str]) -> InputError:
    return InputError(
        f"{reference}: expected one run, found {len(found)}: {', '.join(found)}"
    )


def _by_filter(reference: str, experiment: str, query: str, place: Place) -> list[Path]:
    runs = search(place, query, experiment.strip())
    runs = [run for run in runs if "sweep_parent" not in run.data.tags]
    if not runs:
        raise InputError(f"{reference}: expected runs that meet the filter, found none")
    return _fetch(runs, place)


def _by_sweep(sweep: str, place: Place) -> list[Path]:
    """The folders that name the sweep; if it left none, those that MLflow has."""
    if found := sweep_folders(place.root, sweep):
        return found
    if not store_uri(place):
        raise InputError(f"sweep {sweep}: expected its runs, found none")
    return _by_filter(f"sweep {sweep}", "", f"tags.sweep = '{sweep}'", place)


def _by_run_id(run_id: str, place: Place) -> list[Path]:
    run = find(run_id, place)
    if "sweep_parent" in run.data.tags:
        return _by_sweep(run.data.tags["sweep"], place)
    return _fetch([run], place)


def _fetch(runs: Sequence[Run], place: Place) -> list[Path]:
    """The folders of these runs: those on this machine, the others pulled."""
    here = {}
    for folder in run_folders(place.root):
        try:
            link = read_link(folder)
        except InputError:
            continue  # its run is known to MLflow alone
        if link:
            here[link["run_id"]] = folder
    return [here.get(run.info.run_id) or pull(run.info.run_id, place) for run in runs]


def _by_name(name: str, place: Place) -> list[Path]:
    query = f"attributes.run_name = '{name}'"
    runs = search(place, query) if store_uri(place) else []
    if len(runs) == 1:
        return _fetch(runs, place)
    if runs:
        raise _ambiguous(f"run {name}", [run.info.run_id for run in runs])
    names = [folder.name for folder in run_folders(place.root)]
    close = difflib.get_close_matches(name, names, n=5) or names[:10]
    hint = f"close to it: {', '.join(close)}" if close else "there are none"
    raise InputError(f"run {name}: no such run below {place.root}; {hint}")
