"""The parent run of a sweep in MLflow, and the note on its page."""

from __future__ import annotations

from mlflow.tracking import MlflowClient

from runners.mlflow_note import page, sweep_note
from runners.mlflow_run import MlflowRun
from runners.mlflow_tags import NOTE, sweep_tags
from runners.mlflow_view import EVERY_RUN, address, save_view

MAX_NAME = 250  # characters of a run's name in MLflow


class SweepRun:
    """One sweep: made when it begins, ended with it, described once all is shipped.

    Attributes:
        run_id: of the parent in MLflow.
    """

    def __init__(
        self, client: MlflowClient, experiment_id: str, sweep: str, title: str
    ) -> None:
        self._client, self._experiment_id = client, experiment_id
        self._sweep, self._title = sweep, title
        self._children: dict[str, MlflowRun] = {}
        self._status, self._ended = "KILLED", False
        tags = sweep_tags(sweep, title)
        run = client.create_run(experiment_id, run_name=title[:MAX_NAME], tags=tags)
        self.run_id: str = run.info.run_id
        runs = f"tags.sweep = '{sweep}' AND {EVERY_RUN}"
        save_view(client, experiment_id, self._view, f"Sweep {sweep}", runs)

    @property
    def _view(self) -> str:
        return f"sweep-{self._sweep}"

    def add(self, child: MlflowRun) -> None:
        """A run of the sweep; one that is shipped again takes its own place."""
        self._children[child.run_id] = child

    def end(self, status: str) -> None:
        """End the parent as FINISHED, FAILED or KILLED."""
        self._status = status
        self._client.set_terminated(self.run_id, status)
        self._ended = True

    def close(self) -> None:
        """All is shipped: write the note, and end what nobody has ended."""
        if not self._ended:
            self.end(self._status)
        rows = [
            (page(self._experiment_id, run_id), child.outcome)
            for run_id, child in self._children.items()
        ]
        links = {
            "these runs as a table": address(self._experiment_id, self._view),
            "their curves": address(self._experiment_id, self._view, charts=True),
        }
        note = sweep_note(self._title, rows, links)
        self._client.set_tag(self.run_id, NOTE, note)
