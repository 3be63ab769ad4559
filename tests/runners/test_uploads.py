"""A store that fails a moment: files are uploaded later, and parents go on."""

from __future__ import annotations

import json

import pytest
from mlflow.exceptions import MlflowException

from analysis.parquet import sha256_of
from runners.folders import read_link
from tests.runners.memory_store import a_sweep, change


@pytest.fixture
def refused(store, monkeypatch):
    """Names of files whose first upload fails; what was tried, in order."""
    tried, real = [], store.log_artifact

    def log_artifact(run_id, path):
        name = path.rpartition("/")[2]
        tried.append(name)
        if name == "record.parquet" and tried.count(name) == 1:
            raise MlflowException("the artifact store is away")
        real(run_id, path)

    monkeypatch.setattr(store, "log_artifact", log_artifact)
    return tried


def test_an_upload_that_fails_once_is_tried_again(store, process, refused, copied):
    process.follow(copied)
    process.shipper.advance()
    assert refused.count("record.parquet") == 1
    assert not (read_link(copied) or {}).get("complete")
    (mlflow_run,) = store.runs.values()
    assert mlflow_run.status == "RUNNING"  # not closed without its record
    (answer,) = process.end()
    assert "problem" not in answer
    assert refused.count("record.parquet") == 2
    assert mlflow_run.artifacts["record.parquet"] == sha256_of(
        copied / "record.parquet"
    )
    assert mlflow_run.tags["record_sha256"] == mlflow_run.artifacts["record.parquet"]
    assert mlflow_run.status == "FINISHED"
    assert read_link(copied)["complete"]


def test_a_run_that_fails_does_not_end_its_sweep(store, process, copied):
    change(copied, status="failed", error="ValueError: x")
    sweep = a_sweep(copied, "running")
    process.begin(sweep).follow(copied)
    process.shipper.advance()
    runs = {run.info.name: run.status for run in store.runs.values()}
    assert sorted(runs.values()) == ["FAILED", "RUNNING"]
    assert runs["healthy"] == "FAILED"
    document = json.loads((sweep / "sweep.json").read_text())
    (sweep / "sweep.json").write_text(json.dumps(document | {"status": "failed"}))
    process.end()
    assert [run.status for run in store.runs.values()] == ["FAILED", "FAILED"]
