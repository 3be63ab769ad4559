"""An MLflow store in memory, and a shipper that writes to it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from analysis.parquet import sha256_of
from minigpt.records import TRAIN_LOSS
from runners.shipper import Shipper


class Store:
    """An MLflow client that keeps everything in memory, as far as we use one."""

    def __init__(self):
        self.runs = {}
        self.experiment_tags = {}
        self.broken = False

    def _check(self):
        if self.broken:
            raise MlflowException("database is locked\nand more")

    def create_run(self, experiment, start_time=None, tags=None, run_name=None):
        self._check()
        run_id = f"{len(self.runs):032x}"
        info = SimpleNamespace(
            run_id=run_id,
            experiment_id=experiment,
            lifecycle_stage="active",
            name=run_name,
        )
        tags = dict(tags)
        self.runs[run_id] = SimpleNamespace(
            info=info,
            data=SimpleNamespace(tags=tags),
            tags=tags,
            params={},
            metrics=set(),
            artifacts={},
            status="RUNNING",
            times=(start_time, None),
        )
        return self.runs[run_id]

    def get_run(self, run_id):
        self._check()
        if run_id not in self.runs:
            raise MlflowException("not found", RESOURCE_DOES_NOT_EXIST)
        return self.runs[run_id]

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        self._check()
        assert len(metrics) <= 1000
        run = self.runs[run_id]
        run.metrics |= {(m.key, m.step, m.timestamp, repr(m.value)) for m in metrics}
        for param in params:
            assert run.params.setdefault(param.key, param.value) == param.value
        run.tags |= {tag.key: tag.value for tag in tags}

    def set_tag(self, run_id, key, value):
        self._check()
        self.runs[run_id].tags[key] = value

    def get_experiment(self, experiment_id):
        self._check()
        return SimpleNamespace(tags=self.experiment_tags)

    def set_experiment_tag(self, experiment_id, key, value):
        self.experiment_tags[key] = value

    def log_artifact(self, run_id, path):
        self._check()
        self.runs[run_id].artifacts[Path(path).name] = sha256_of(Path(path))

    def set_terminated(self, run_id, status, end_time=None):
        self._check()
        run = self.runs[run_id]
        run.status, run.times = status, (run.times[0], end_time)


class Process:
    """A shipper and what it has answered."""

    def __init__(self):
        self.output = io.StringIO()
        self.shipper = Shipper("sqlite:///x", "lab", self.output)

    def follow(self, *folders):
        for folder in folders:
            self.shipper.take({"folder": str(folder)})
        return self

    def attach(self, path):
        self.shipper.take({"attach": str(path)})
        return self

    def end(self):
        self.shipper.end()
        return [json.loads(line) for line in self.output.getvalue().splitlines()]


def shipped_steps(mlflow_run, key=TRAIN_LOSS) -> list[int]:
    return sorted(step for name, step, _, _ in mlflow_run.metrics if name == key)


def change(folder, **entries):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
