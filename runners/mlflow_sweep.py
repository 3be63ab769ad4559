"""The parent run of a sweep in MLflow, and the note on its page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow.tracking import MlflowClient

from analysis.history import load, read_manifest
from analysis.summary import summarise
from minigpt.atomic import write_atomically
from minigpt.records import InputError
from runners.folders import (
    MLFLOW,
    SWEEP_FILE,
    current_status,
    read_link,
    sweep_folders,
)
from runners.mlflow_note import Outcome, page, sweep_note
from runners.mlflow_run import KEY, MlflowRun, find_by_key
from runners.mlflow_tags import NOTE, sweep_tags
from runners.mlflow_view import EVERY_RUN, address, save_view
from runners.owner import DEAD, liveness, settled

MAX_NAME = 250  # characters of a run's name in MLflow
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


def read_sweep(folder: Path) -> dict[str, Any]:
    """What a sweep's folder says of it; the status is that of the present moment.

    Raises:
        InputError: the file is missing or damaged.
    """
    path = folder / SWEEP_FILE
    try:
        document = json.loads(path.read_bytes())
        if not {"key", "title", "status", "tracking"} <= document.keys():
            raise ValueError("other keys")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path}: expected the state of a sweep, found {error!s:.200}"
        ) from None
    if document["status"] == "running":
        last_sign = path.stat().st_mtime
        if liveness(document.get("owner"), last_sign) == DEAD:
            document["status"] = "killed"
    return document


class SweepRun:
    """One sweep: made when it begins, ended and described once all is shipped.

    Args:
        client: of the store.
        experiment_id: where the parent goes.
        folder: of the sweep, with its file.

    Raises:
        InputError: the sweep's file cannot be read.

    Attributes:
        folder: of the sweep.
        run_id: of the parent in MLflow.
    """

    def __init__(self, client: MlflowClient, experiment_id: str, folder: Path) -> None:
        self._client, self._experiment_id = client, experiment_id
        self.folder, document = folder, read_sweep(folder)
        self._title = document["title"]
        self._children: dict[str, MlflowRun] = {}  # by the name of the folder
        run = find_by_key(client, experiment_id, document["key"])
        if run is None:
            tags = sweep_tags(folder.name, self._title) | {KEY: document["key"]}
            name = self._title[:MAX_NAME]
            run = client.create_run(experiment_id, run_name=name, tags=tags)
        self.run_id: str = run.info.run_id
        self._status = run.info.status
        runs = f"tags.sweep = '{folder.name}' AND {EVERY_RUN}"
        save_view(client, experiment_id, self._view, f"Sweep {folder.name}", runs)

    @property
    def _view(self) -> str:
        return f"sweep-{self.folder.name}"

    def add(self, child: MlflowRun) -> None:
        """A run of the sweep that is being shipped."""
        self._children[child.folder.name] = child

    def close(self) -> None:
        """Write the note, and end the run unless the sweep goes on.

        Raises:
            InputError: the sweep's file cannot be read.
        """
        status = settled(lambda: read_sweep(self.folder)["status"])
        self._client.set_tag(self.run_id, NOTE, self._note())
        if status in _STATUS:
            # A child may be shipped again much later; the sweep ended when it did.
            if self._status != _STATUS[status]:
                self._client.set_terminated(self.run_id, _STATUS[status])
                self._status = _STATUS[status]
            link = {"run_id": self.run_id, "complete": True}
            text = json.dumps(link | {"experiment_id": self._experiment_id}, indent=1)
            write_atomically(self.folder / MLFLOW, text.encode())

    def _note(self) -> str:
        links = {
            "these runs as a table": address(self._experiment_id, self._view),
            "their curves": address(self._experiment_id, self._view, charts=True),
        }
        return sweep_note(self._title, self._rows(), links)

    def _rows(self) -> Iterator[tuple[str, Outcome | None]]:
        """Each run of the sweep that MLflow has, whoever shipped it and when."""
        for folder in sweep_folders(self.folder.parent.parent, self.folder.name):
            child, link = self._children.get(folder.name), read_link(folder)
            if link:
                outcome = child.outcome if child else outcome_of(folder)
                yield page(self._experiment_id, link["run_id"]), outcome


def outcome_of(folder: Path) -> Outcome | None:
    """What became of a run, as its folder says; None if that cannot be read."""
    try:
        manifest, history = read_manifest(folder), load(folder)
    except InputError:
        return None
    status = current_status(folder, manifest)
    return Outcome(history.name, status, manifest.get("error"), summarise(history))


def is_closed(folder: Path) -> bool:
    """Whether the sweep's parent was ended in MLflow.

    Raises:
        InputError: the link is damaged.
    """
    link = read_link(folder)
    return bool(link and link.get("complete"))
