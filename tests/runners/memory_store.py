"""An MLflow store in memory, and a shipper that writes to it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from analysis.parquet import sha256_of
from minigpt.records import TRAIN_LOSS
from runners.connection import Connection
from runners.owner import owner
from runners.shipper import Shipper


class Run:
    """A run as MLflow's client gives it, and what was logged to it."""

    def __init__(self, info, tags, times):
        self.info, self.tags, self.times = info, tags, times
        self.params, self.metrics, self.artifacts = {}, set(), {}
        self.data = SimpleNamespace(tags=tags, params=self.params)
        self.status, self.endings = "RUNNING", 0

    @property
    def status(self):
        return self.info.status

    @status.setter
    def status(self, status):
        self.info.status = status


class Page(list):
    """Some of the runs that a search finds, and where the next ones begin."""

    def __init__(self, runs, token):
        super().__init__(runs)
        self.token = token


class Store:
    """An MLflow client that keeps everything in memory, as far as we use one."""

    def __init__(self):
        self.runs = {}
        self.experiment_tags = {}
        self.broken = False
        self.made = 0

    def _check(self):
        if self.broken:
            raise MlflowException("database is locked\nand more")

    def create_run(self, experiment, start_time=None, tags=None, run_name=None):
        self._check()
        run_id = f"{self.made:032x}"
        self.made += 1
        info = SimpleNamespace(
            run_id=run_id,
            experiment_id=experiment,
            lifecycle_stage="active",
            name=run_name,
        )
        self.runs[run_id] = Run(info, dict(tags), (start_time, None))
        return self.runs[run_id]

    def search_experiments(self, max_results=1):
        self._check()

    def search_runs(self, experiments, query="", max_results=1000, page_token=None):
        """Two runs a page, so that whoever forgets the next page is found out."""
        self._check()
        runs = self.runs.values()
        found = [run for run in runs if run.info.lifecycle_stage == "active"]
        if query:
            key, value = re.fullmatch(r"tags\.`(.+)` = '(.+)'", query).groups()
            found = [run for run in found if run.tags.get(key) == value]
        start = int(page_token or 0)
        more = str(start + 2) if len(found) > start + 2 else None
        return Page(found[start : start + 2], more)

    def update_run(self, run_id, status):
        self._check()
        self.runs[run_id].status = status

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

    def log_artifacts(self, run_id, folder, path):
        self._check()
        for file in sorted(Path(folder).rglob("*")):
            if file.is_file():
                name = f"{path}/{file.relative_to(folder)}"
                self.runs[run_id].artifacts[name] = sha256_of(file)

    def set_terminated(self, run_id, status, end_time=None):
        self._check()
        run = self.runs[run_id]
        run.status, run.times = status, (run.times[0], end_time)
        run.endings += 1


class Process:
    """A shipper and what it has answered."""

    def __init__(self):
        self.answers = []
        self.shipper = Shipper(
            Connection("sqlite:///x", "lab", Path("runs")), self.answers.append
        )

    def follow(self, *folders):
        for folder in folders:
            self.shipper.take({"folder": str(folder)})
        return self

    def begin(self, sweep):
        self.shipper.take({"sweep": str(sweep)})
        return self

    def attach(self, path):
        self.shipper.take({"attach": str(path)})
        return self

    def end(self):
        self.shipper.end()
        return self.answers


def shipped_steps(mlflow_run, key=TRAIN_LOSS) -> list[int]:
    return sorted(step for name, step, _, _ in mlflow_run.metrics if name == key)


def change(folder, **entries):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def a_sweep(copied, status="finished", title="clip=0.5,1.0", **facts):
    """The folder of a sweep to which the run of ``copied`` belongs."""
    folder = copied.parent / ".sweeps" / "s-1"
    folder.mkdir(parents=True)
    facts |= {"key": "k" * 32, "title": title, "status": status, "owner": owner()}
    facts["tracking"] = {"kind": "mlflow", "uri": None, "experiment": "lab"}
    (folder / "sweep.json").write_text(json.dumps(facts))
    change(copied, sweep="s-1")
    return folder
