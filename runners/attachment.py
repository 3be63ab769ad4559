"""A file of a run folder as an artifact of its MLflow run, linked in the run's note."""

from __future__ import annotations

from pathlib import Path

from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from runners.mlflow_note import linked, page
from runners.mlflow_tags import NOTE


def attach_file(client: MlflowClient, run: Run, path: Path) -> None:
    """Upload a file, and add a link to it to the run's note.

    Raises:
        MlflowException: the store does not take it.
        OSError: it cannot be read, or its place cannot be written.
    """
    run_id = run.info.run_id
    client.log_artifact(run_id, str(path))
    if note := run.data.tags.get(NOTE):
        there = page(run.info.experiment_id, run_id, path.name)
        client.set_tag(run_id, NOTE, linked(note, path.stem, there))
