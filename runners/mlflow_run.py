"""One run folder as one MLflow run: params, tags, points, artifacts, status."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from analysis.history import MANIFEST, PARQUET
from minigpt.atomic import write_atomically
from runners.curves import Point
from runners.folders import CONFIG, MLFLOW, VOCABULARY

BATCH = 1000  # metrics a request, MLflow's own limit
PARENT_TAG = "mlflow.parentRunId"
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_ARTIFACTS = (MANIFEST, CONFIG, VOCABULARY, PARQUET)


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
        self._client = client
        self._folder = folder
        link = folder / MLFLOW
        if link.is_file():
            self.run_id = json.loads(link.read_bytes())["run_id"]
            return
        tags = run_tags(manifest)
        if parent:
            tags[PARENT_TAG] = parent
        run = client.create_run(
            experiment_id,
            start_time=milliseconds(manifest["started_at"]),
            tags=tags,
            run_name=manifest["name"],
        )
        self.run_id = run.info.run_id
        document = {
            "run_id": self.run_id,
            "experiment_id": experiment_id,
            "tracking_uri": uri,
        }
        write_atomically(link, json.dumps(document, indent=1).encode())
        params = [Param(key, value) for key, value in run_params(manifest["config"])]
        client.log_batch(self.run_id, params=params)

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
        for name in _ARTIFACTS:
            if (self._folder / name).is_file():
                self._client.log_artifact(self.run_id, str(self._folder / name))
        record = manifest.get("record") or {}
        tags = [RunTag("status", status)]
        if record:
            tags.append(RunTag("record_sha256", record["sha256"]))
        if manifest["error"]:
            tags.append(RunTag("error", manifest["error"][:5000]))
        self._client.log_batch(self.run_id, tags=tags)
        ended = manifest["ended_at"]
        self._client.set_terminated(
            self.run_id, _STATUS[status], milliseconds(ended) if ended else None
        )


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
