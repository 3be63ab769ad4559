"""One run folder as one MLflow run: params, tags, points, artifacts, status."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from analysis.history import JOURNAL, MANIFEST, PARQUET
from analysis.summary import RunSummary
from minigpt.atomic import write_atomically
from runners.curves import Point
from runners.folders import CONFIG, DASHBOARD, MLFLOW, VOCABULARY, read_link
from runners.mlflow_note import Outcome, page, run_note
from runners.mlflow_tags import (
    MAX_TAG,
    NOTE,
    PARENT,
    closing_tags,
    run_params,
    run_tags,
)
from runners.script.alerts import read_alerts

BATCH = 1000  # metrics a request, MLflow's own limit
KEY = "loss_autopsy.key"
ARTIFACTS = "artifacts"  # what a script gave to its run, in the folder and in MLflow
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_ARTIFACTS = (MANIFEST, CONFIG, VOCABULARY, DASHBOARD)


class MlflowRun:
    """The MLflow side of a run folder; made once, found again by ``mlflow.json``.

    Args:
        client: of the store.
        uri: the store's address, as it may be written down.
        experiment_id: where a new run goes.
        folder: the run folder.
        manifest: its manifest.
        parent: id of the parent run of its sweep, if any.

    Attributes:
        folder: the run folder.
        run_id: in MLflow.
        outcome: what became of the run, once it is closed here.
    """

    def __init__(
        self,
        client: MlflowClient,
        uri: str,
        experiment_id: str,
        folder: Path,
        manifest: dict[str, Any],
        parent: str | None = None,
    ) -> None:
        self._client, self._manifest = client, manifest
        self.folder = folder
        self.outcome: Outcome | None = None
        self._link = read_link(folder) or {}
        run = self._find(experiment_id) or self._create(experiment_id, parent)
        self.run_id: str = run.info.run_id
        if self._link.get("run_id") != self.run_id:
            self._link = {"experiment_id": experiment_id, "parent": parent}
            self._link["run_id"] = self.run_id
            self._write_link(tracking_uri=uri, complete=False)
        self._set_params(run)
        if manifest["status"] == "running" and run.info.status != "RUNNING":
            self._begin_again()

    def _find(self, experiment_id: str) -> Run | None:
        """The run of this folder, if the store has it.

        A shipper that died between making a run and writing down its id left a run
        that knows the folder's key.
        """
        if run_id := self._link.get("run_id"):
            try:
                run = self._client.get_run(run_id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                if run.info.lifecycle_stage == LifecycleStage.ACTIVE:
                    return run
        key = self._key()
        return find_by_key(self._client, experiment_id, key) if key else None

    def _key(self) -> str | None:
        """Of the run; with the folder's name, as a copied folder is another run."""
        if key := self._manifest.get("key"):
            return hashlib.sha256(f"{key}/{self.folder.name}".encode()).hexdigest()
        return None

    def _create(self, experiment_id: str, parent: str | None) -> Run:
        manifest = self._manifest
        self._link = {"experiment_id": experiment_id, "parent": parent}
        tags = run_tags(manifest)
        tags[NOTE] = self._note(Outcome(manifest["name"], "running"))
        if parent:
            tags[PARENT] = parent
        if key := self._key():
            tags[KEY] = key
        return self._client.create_run(
            experiment_id,
            start_time=milliseconds(manifest["started_at"]),
            tags=tags,
            run_name=manifest["name"],
        )

    def _set_params(self, run: Run) -> None:
        """Write what is not there yet: a param of MLflow is never written twice."""
        there = run.data.params
        params = run_params(self._manifest)
        new = [Param(key, value) for key, value in params if key not in there]
        self._client.log_batch(self.run_id, params=new)

    def _begin_again(self) -> None:
        """The run was ended here before, and goes on."""
        self._client.update_run(self.run_id, status="RUNNING")
        tags = {"status": "running", **_resumes(self._manifest)}
        self._client.log_batch(self.run_id, tags=[RunTag(*one) for one in tags.items()])
        self._write_link(complete=False)

    def _write_link(self, **facts: Any) -> None:
        self._link |= facts
        text = json.dumps(self._link, indent=1)
        write_atomically(self.folder / MLFLOW, text.encode())

    def log(self, points: Sequence[Point]) -> int:
        """Ship points; a point shipped before is not doubled. Returns metrics sent."""
        metrics = [
            Metric(key, value, point.timestamp_ms, point.step)
            for point in points
            for key, value in point.values.items()
        ]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self.run_id, metrics[start : start + BATCH])
        return len(metrics)

    def close(self, manifest: dict[str, Any], status: str, summary: RunSummary) -> None:
        """Upload the artifacts, say what became of the run, and end it.

        Args:
            manifest: of the closed folder; the run ends when the folder says.
            status: finished, failed or killed.
            summary: of the record.
        """
        self._manifest, record = manifest, manifest["record"]
        # A script may have chosen more since the run was made here.
        self._set_params(self._client.get_run(self.run_id))
        for name in (*_ARTIFACTS, PARQUET if record else JOURNAL):
            if (self.folder / name).is_file():
                self._client.log_artifact(self.run_id, str(self.folder / name))
        if (self.folder / ARTIFACTS).is_dir():
            there = str(self.folder / ARTIFACTS)
            self._client.log_artifacts(self.run_id, there, ARTIFACTS)
        outcome = Outcome(manifest["name"], status, manifest["error"], summary)
        tags = {"status": status, NOTE: self._note(outcome), **_resumes(manifest)}
        tags |= closing_tags(self.folder, manifest)
        if record:
            tags["record_sha256"] = record["sha256"]
        ended = manifest["ended_at"]
        self._end(tags, manifest["error"], _STATUS[status], ended)
        self._write_link(complete=True)
        self.outcome = outcome

    def abandon(self, reason: str) -> None:
        """End the run as failed: its folder cannot be read."""
        self.outcome = Outcome(self._manifest["name"], "failed", reason)
        tags = {"status": "failed", NOTE: self._note(self.outcome)}
        self._end(tags, reason, "FAILED", None)

    def _note(self, outcome: Outcome) -> str:
        experiment, links = str(self._link.get("experiment_id")), {}
        if (self.folder / DASHBOARD).is_file() and "run_id" in self._link:
            address = page(experiment, self._link["run_id"], DASHBOARD)
            links["dashboard"] = address
        if parent := self._link.get("parent"):
            links["the sweep that it is part of"] = page(experiment, str(parent))
        alerts = read_alerts(self.folder)
        return run_note(outcome, self._manifest, links, alerts)

    def _end(
        self, tags: dict[str, str], error: str | None, status: str, ended: str | None
    ) -> None:
        if error:
            tags["error"] = error[:MAX_TAG]
        self._client.log_batch(self.run_id, tags=[RunTag(*one) for one in tags.items()])
        moment = milliseconds(ended) if ended else None
        self._client.set_terminated(self.run_id, status, moment)


def find_by_key(client: MlflowClient, experiment_id: str, key: str) -> Run | None:
    """The run that was made with this value of the tag ``KEY``, if it was made."""
    found = client.search_runs([experiment_id], f"tags.`{KEY}` = '{key}'")
    return found[0] if found else None


def _resumes(manifest: dict[str, Any]) -> dict[str, str]:
    """How often a run went on after it had ended early, and whether that differed."""
    resumes = manifest.get("resumes") or []
    tags = {"resumes": str(len(resumes))} if resumes else {}
    if any(one.get("differs") for one in resumes):
        tags["replay_differs"] = "true"
    return tags


def milliseconds(moment: str) -> int:
    """ISO 8601 to milliseconds since the epoch."""
    return int(datetime.fromisoformat(moment).timestamp() * 1000)
