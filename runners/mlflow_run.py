"""One run folder as one MLflow run: params, tags, points, artifacts, status."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mlflow.entities import LifecycleStage, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from analysis.history import JOURNAL, MANIFEST, PARQUET
from minigpt.atomic import write_atomically
from runners.curves import Point
from runners.folders import CONFIG, MLFLOW, VOCABULARY, read_link

BATCH = 1000  # metrics a request, MLflow's own limit
MAX_TAG = 5000  # characters of an error; MLflow takes 8000
PARENT_TAG = "mlflow.parentRunId"
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_ARTIFACTS = (MANIFEST, CONFIG, VOCABULARY)


class MlflowRun:
    """The MLflow side of a run folder; made once, found again by ``mlflow.json``.

    Args:
        client: of the store.
        uri: the store's address, as it may be written down.
        experiment_id: where a new run goes.
        folder: the run folder.
        manifest: its manifest.
        parent: id of the parent run of its sweep, if any.
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
        self._client, self._folder = client, folder
        tags = run_tags(manifest)
        if parent:
            tags[PARENT_TAG] = parent
        self._link = read_link(folder)
        if self._link is None or not self._exists(self._link["run_id"]):
            run = client.create_run(
                experiment_id,
                start_time=milliseconds(manifest["started_at"]),
                tags=tags,
                run_name=manifest["name"],
            )
            self._link = {"run_id": run.info.run_id, "experiment_id": experiment_id}
            self._write_link(tracking_uri=uri, complete=False)
        self.run_id: str = self._link["run_id"]
        params = [Param(key, value) for key, value in run_params(manifest["config"])]
        client.log_batch(self.run_id, params=params)

    def _exists(self, run_id: str) -> bool:
        """Whether the store has the run; another store, or a new one, has not."""
        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return run.info.lifecycle_stage == LifecycleStage.ACTIVE

    def _write_link(self, **facts: Any) -> None:
        self._link |= facts
        text = json.dumps(self._link, indent=1)
        write_atomically(self._folder / MLFLOW, text.encode())

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

    def close(self, manifest: dict[str, Any], status: str) -> None:
        """Upload the artifacts and end the run with the folder's own end time."""
        record = manifest["record"]
        for name in (*_ARTIFACTS, PARQUET if record else JOURNAL):
            if (self._folder / name).is_file():
                self._client.log_artifact(self.run_id, str(self._folder / name))
        tags = {"status": status}
        if record:
            tags["record_sha256"] = record["sha256"]
        ended = manifest["ended_at"]
        self._end(tags, manifest["error"], _STATUS[status], ended)
        self._write_link(complete=True)

    def abandon(self, reason: str) -> None:
        """End the run as failed: its folder cannot be read."""
        self._end({"status": "failed"}, reason, "FAILED", None)

    def _end(
        self, tags: dict[str, str], error: str | None, status: str, ended: str | None
    ) -> None:
        if error:
            tags["error"] = error[:MAX_TAG]
        self._client.log_batch(self.run_id, tags=[RunTag(*one) for one in tags.items()])
        moment = milliseconds(ended) if ended else None
        self._client.set_terminated(self.run_id, status, moment)


def milliseconds(moment: str) -> int:
    """ISO 8601 to milliseconds since the epoch."""
    return int(datetime.fromisoformat(moment).timestamp() * 1000)


def run_params(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The resolved config as dotted names and text; predictions are left out.

    A null is spelt ``null`` as on the command line, so that it can be searched.
    """
    for key, value in config.items():
        if key in ("predictions", "tracking", "paths"):
            continue
        if isinstance(value, dict):
            yield from run_params(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", "null" if value is None else str(value)


def run_tags(manifest: dict[str, Any]) -> dict[str, str]:
    """What people filter by: the choices, the seeds, the code, the sweep."""
    config, git = manifest["config"], manifest["git"]
    tags = {
        "injection": config["injection"]["kind"],
        "loader": config["loader"]["kind"],
        "clip": "null" if config["clip"] is None else str(config["clip"]),
        "seed": str(config["seed"]),
        "data_seed": str(config["data_seed"]),
        "experiment": manifest["experiment"],
        "sweep": manifest["sweep"],
        "git.commit": git["commit"],
        "git.dirty": None if git["dirty"] is None else str(git["dirty"]).lower(),
        "config_hash": manifest["config_hash"],
        "code_hash": manifest["code_hash"],
    }
    return {key: value for key, value in tags.items() if value is not None}
