"""``autopsy dashboard`` and ``autopsy compare``: pages drawn, written and attached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from analysis.dashboard.pages import check_count, draw_comparison, draw_dashboard
from analysis.history import RunHistory, load
from minigpt.atomic import write_atomically
from minigpt.records import InputError
from runners.folders import DASHBOARD, read_link
from runners.references import resolve, resolve_one
from runners.report import say
from runners.tracked import PULLED, Place, attach

COMPARISON = "compare.html"
_PAGE = b"<!doctype html>"  # how a page begins


def dashboard(
    reference: str, baseline: str | None, place: Place, console: Console
) -> int:
    """Draw the page of a run into its folder, and attach it to its run in MLflow.

    Returns:
        0; 1 if the page is written and could not be attached.

    Raises:
        InputError: a bad reference, or a run that cannot be read.
        OSError: the page cannot be written.
    """
    folder = resolve_one(reference, place)
    below = load(resolve_one(baseline, place)) if baseline is not None else None
    path = write_dashboard(folder, below)
    say(console, str(path))
    try:
        run_id = attach_page(path, place)
    except InputError as error:
        say(console, f"not attached to its run in MLflow: {error}")
        return 1
    if run_id is None:
        say(console, "not tracked in MLflow, so attached to no run")
    else:
        say(console, f"attached to the MLflow run {run_id}")
    return 0


def write_dashboard(folder: Path, baseline: RunHistory | None = None) -> Path:
    """Draw the page of a run into its folder; its path.

    Raises:
        InputError: the run cannot be read.
        OSError: the page cannot be written.
    """
    path = folder / DASHBOARD
    write_atomically(path, draw_dashboard(load(folder), baseline).encode())
    return path


def attach_page(path: Path, place: Place) -> str | None:
    """Attach the page of a run folder, of this machine or pulled, to its MLflow run.

    Returns:
        The run's id; None if the run is not tracked.

    Raises:
        InputError: the run's link is damaged, or MLflow does not take the page.
    """
    folder = path.parent.resolve()
    link = {"run_id": folder.name} if folder.parent.name == PULLED else None
    link = link or read_link(folder)
    if link is None:
        return None
    attach(path, link["run_id"], place)
    return link["run_id"]


def compare(
    references: Sequence[str], output: Path | None, place: Place, console: Console
) -> int:
    """Draw several runs into one page.

    Args:
        references: of runs, or of sweeps and filters, whose runs are all meant.
        output: the file; by default ``compare.html`` in the folder of all runs.
        place: where runs are looked up.
        console: gets the path.

    Returns:
        0.

    Raises:
        InputError: a bad reference, a run that cannot be read, or not 2 to 32 runs.
        OSError: the page cannot be written.
    """
    path = place.root / COMPARISON if output is None else output
    _check_output(path)
    found = [folder for one in references for folder in resolve(one, place)]
    folders = {folder.resolve(): folder for folder in found}
    check_count(len(folders))
    page = draw_comparison([load(folder) for folder in folders.values()])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode())
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise InputError(
            f"--output {path}: expected a file that can be written, found: "
            f"{error.strerror}"
        ) from error
    say(console, str(path))
    return 0


def _check_output(path: Path) -> None:
    """Refuse to replace anything but a page."""
    if path.is_dir():
        raise InputError(f"--output {path}: expected a file, found a folder")
    if not path.exists():
        return
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_PAGE)).lower() == _PAGE:
                return
    raise InputError(
        f"--output {path}: expected a new file or an older page, found something else"
    )
