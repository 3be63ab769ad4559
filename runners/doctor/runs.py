"""The doctor's look at the runs below the root, and at what killed writes left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from analysis.history import JOURNAL, PARQUET, read_manifest
from minigpt.records import InputError
from runners.doctor.check import OK, PROBLEM, WARNING, Check
from runners.folders import last_sign, read_link, run_folders
from runners.owner import ALIVE, DEAD, liveness
from runners.tracked import PULLED

QUIET_SECONDS = 60.0  # no write of ours leaves its temporary file untouched for longer
_NAMED = 5  # names in one row
_SYNC = "`autopsy sync`"


@dataclass(frozen=True)
class _Run:
    """A run folder, its manifest, and alive, dead or unknown if it says it runs."""

    folder: Path
    manifest: dict[str, Any]
    lives: str | None

    @property
    def host(self) -> str:
        who = self.manifest.get("owner")
        return str(who.get("host")) if isinstance(who, dict) else "nobody known"

    @property
    def tracked(self) -> bool:
        """Whether the run is meant to be in MLflow."""
        tracking = self.manifest.get("tracking")
        if tracking is None and isinstance(self.manifest.get("config"), dict):
            tracking = self.manifest["config"].get("tracking")
        return isinstance(tracking, dict) and tracking.get("kind") != "none"


def check_runs(root: Path) -> list[Check]:
    """Rows about the runs' manifests, processes and places in MLflow."""
    runs, damaged = _read(root)
    return [
        _manifests(runs, damaged),
        *_running(runs),
        _in_mlflow(runs),
        _leftovers(root),
    ]


def _read(root: Path) -> tuple[list[_Run], list[str]]:
    runs, damaged = [], []
    for folder in sorted({*run_folders(root), *_headless(root)}):
        try:
            manifest = read_manifest(folder)
        except InputError as error:
            damaged.append(str(error))
            continue
        lives = None
        if manifest.get("status") == "running":
            lives = liveness(manifest.get("owner"), last_sign(folder))
        runs.append(_Run(folder, manifest, lives))
    return runs, damaged


def _headless(root: Path) -> Iterator[Path]:
    """Folders that hold a record and no manifest."""
    for name in (JOURNAL, PARQUET):
        for path in root.glob(f"[!.]*/{name}"):
            yield path.parent


def _manifests(runs: list[_Run], damaged: list[str]) -> Check:
    name = "manifests"
    if not damaged:
        return Check(name, OK, f"{len(runs)} runs, all can be read")
    found = f"{len(damaged)} damaged: {_some(damaged, '; ')}"
    advice = "move the folder away; `autopsy show` fetches a run by its id in MLflow"
    return Check(name, PROBLEM, found, advice)


def _running(runs: list[_Run]) -> Iterator[Check]:
    """A row for the runs that say that they run; a second one where nobody can tell."""
    dead = [run.folder.name for run in runs if run.lives == DEAD]
    alive = sum(run.lives == ALIVE for run in runs)
    if dead:
        found = f"{len(dead)} whose process is dead: {_some(dead)}"
        yield Check("runs that run", WARNING, found, _SYNC)
    else:
        yield Check("runs that run", OK, str(alive))
    unknown = [run for run in runs if run.lives not in (None, ALIVE, DEAD)]
    if unknown:
        hosts = ", ".join(sorted({run.host for run in unknown}))
        names = _some([run.folder.name for run in unknown])
        found = f"cannot tell whether they live: {names}, of {hosts}"
        yield Check("runs of others", WARNING, found, "ask the doctor on that machine")


def _in_mlflow(runs: list[_Run]) -> Check:
    name = "runs in MLflow"
    missing, broken = [], []
    for run in runs:
        if not run.tracked or run.lives not in (None, DEAD):
            continue
        try:
            link = read_link(run.folder)
        except InputError as error:
            broken.append(str(error))
            continue
        if not (link and link.get("complete")):
            missing.append(run.folder.name)
    if broken:
        advice = f"remove the file, then {_SYNC}"
        return Check(name, PROBLEM, _some(broken, "; "), advice)
    if missing:
        found = f"{len(missing)} not complete there: {_some(missing)}"
        return Check(name, WARNING, found, _SYNC)
    return Check(name, OK, "all that have ended are complete")


def _leftovers(root: Path) -> Check:
    """What a process that was killed while it wrote has left."""
    name = "leftovers of killed writes"
    unreadable: list[str] = []
    sizes = {}
    for path in _temporary(root, unreadable):
        touched, size = _age_and_size(path)
        if touched > QUIET_SECONDS:  # else somebody may be writing it now
            sizes[str(path.relative_to(root))] = size
    if unreadable:
        found = f"folders that cannot be read: {_some(unreadable)}"
        return Check(name, PROBLEM, found, "the right to read them")
    if not sizes:
        return Check(name, OK, "none")
    found = f"{sum(sizes.values()) / 1e6:.1f} MB: {_some(list(sizes))}"
    return Check(name, WARNING, found, "remove them")


def _temporary(root: Path, unreadable: list[str]) -> Iterator[Path]:
    """Temporary files, and temporary folders as a whole."""

    def refuse(error: OSError) -> None:
        if Path(error.filename) != root or root.exists():
            unreadable.append(str(error.filename))

    for folder, folders, files in os.walk(root, onerror=refuse):
        here = Path(folder)
        partial = [n for n in folders if here.name == PULLED and n.endswith(".part")]
        folders[:] = sorted(set(folders) - set(partial))
        names = [*partial, *(name for name in files if name.endswith(".tmp"))]
        yield from (here / name for name in sorted(names))


def _age_and_size(path: Path) -> tuple[float, int]:
    """Seconds since anything in it was written, and its bytes; (0, 0) if it is gone."""
    try:
        facts = [one.stat() for one in (path, *path.rglob("*"))]
    except FileNotFoundError:
        return 0.0, 0  # its writer has finished in this moment
    size = sum(one.st_size for one in facts if S_ISREG(one.st_mode))
    return time.time() - max(one.st_mtime for one in facts), size


def _some(names: list[str], between: str = ", ") -> str:
    """The first few, and how many there are besides."""
    rest = len(names) - _NAMED
    return between.join([*names[:_NAMED], *([f"and {rest} more"] if rest > 0 else [])])
