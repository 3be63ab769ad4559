"""A run of the command in a real MLflow store: the points of the rule, and the rest."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analysis.ema import ema
from analysis.history import load
from analysis.parquet import sha256_of
from analysis.summary import FIRST_NONFINITE, SUMMARY_KEYS, summarise
from minigpt import records as col
from runners.compose import compose_config
from runners.config import to_plain
from runners.curves import CADENCE_CURVES, CURVES, LOSS_EMA
from runners.mlflow_tags import run_color
from tests.runners.commands import AUTOPSY, wait_for
from tests.runners.stored import expected_steps, mlflow_runs, shipped_steps

pytestmark = pytest.mark.slow

CHOICES = ("name=x", "injection=scale", "injection_step=170", "steps=260", "clip=0.5",
           "seed=7", "loader=stratified", "experiment=19-injection-A",
           "cadence.validation=50")  # fmt: skip


FILES = {"manifest.json", "config.yaml", "vocabulary.json", "record.parquet"}


@pytest.fixture(scope="module")
def folder(empty_store, tmp_path_factory) -> Path:
    """The folder of a run that went into the store of its root."""
    working = tmp_path_factory.mktemp("tracked")
    (working / "experiments").mkdir()
    (working / "experiments" / "mlflow.db").write_bytes(empty_store.read_bytes())
    done = subprocess.run(
        [AUTOPSY, "train", *CHOICES], cwd=working, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "MLflow run" in done.stdout
    return working / "experiments" / "x"


@pytest.fixture(scope="module")
def database(folder):
    with sqlite3.connect(folder.parent / "mlflow.db") as database:
        yield database


def table(database, name) -> dict[str, str]:
    return dict(database.execute(f"SELECT key, value FROM {name}").fetchall())


def test_there_is_one_run_and_it_finished(folder, database):
    assert mlflow_runs(folder.parent) == {"x": "FINISHED"}
    ((experiment,),) = database.execute(
        "SELECT e.name FROM runs JOIN experiments e USING (experiment_id)"
    )
    assert experiment == "loss-autopsy"
    link = json.loads((folder / "mlflow.json").read_text())
    ((run_id,),) = database.execute("SELECT run_uuid FROM runs")
    assert (link["run_id"], link["complete"]) == (run_id, True)


def test_every_curve_holds_exactly_the_points_of_the_rule(folder, database):
    steps = expected_steps(folder)
    assert 20 < len(steps) < 150
    assert set(range(160, 221)) <= set(steps)  # around the injection, all of them
    for key in (*CURVES, LOSS_EMA):
        assert shipped_steps(folder.parent, "x", key) == steps, key
    for key in CADENCE_CURVES:
        expected = list(range(0, 260, 50 if key.startswith("val/") else 100))
        assert shipped_steps(folder.parent, "x", key) == expected, key
    keys = {key for (key,) in database.execute("SELECT DISTINCT key FROM metrics")}
    finite = set(SUMMARY_KEYS) - {FIRST_NONFINITE}
    assert keys == {*CURVES, *CADENCE_CURVES, LOSS_EMA, *finite}
    assert len(keys) == 20


def test_values_and_times_are_those_of_the_record(folder, database):
    history = load(folder)
    columns = {key: history.scalar(key) for key in (*CURVES, *CADENCE_CURVES)}
    columns[LOSS_EMA] = ema(history.scalar(col.TRAIN_LOSS))
    walls = history.scalar(col.TIME_WALL)
    figures = summarise(history).figures
    rows = database.execute("SELECT key, step, value, timestamp, is_nan FROM metrics")
    summaries = []
    for key, step, value, timestamp, is_nan in rows:
        if key in figures:
            summaries.append(key)
            assert (value, step) == (figures[key].value, figures[key].step)
        else:
            assert value == columns[key][step]
        assert timestamp == int(walls[step] * 1000)
        assert not is_nan
    assert sorted(summaries) == sorted(figures)


def test_params_are_the_resolved_config(database):
    params = table(database, "params")
    plain = to_plain(compose_config(list(CHOICES)))
    flat = {}
    for key, value in plain.items():
        parts = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".strip("."): item for name, item in parts.items()}
    for key in ("injection.predictions", "paths.root"):
        del flat[key]
    flat = {key: value for key, value in flat.items() if not key.startswith("tracking")}
    expected = {k: "null" if v is None else str(v) for k, v in flat.items()}
    assert params == expected


def test_tags_are_what_people_filter_by(folder, database):
    tags = table(database, "tags")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {
        "injection": "scale",
        "loader": "stratified",
        "clip": "0.5",
        "seed": "7",
        "data_seed": "7",
        "experiment": "19-injection-A",
        "status": "finished",
        "config_hash": manifest["config_hash"],
        "code_hash": manifest["code_hash"],
        "record_sha256": manifest["record"]["sha256"],
        "git.commit": manifest["git"]["commit"],
        "mlflow.runColor": run_color("scale"),
    }.items() <= tags.items()
    assert "sweep" not in tags


def test_artifacts_are_the_files_of_the_folder(folder):
    (stored,) = folder.parent.glob("mlartifacts/*/artifacts")
    names = {path.name for path in stored.iterdir()}
    assert names == {
        "manifest.json",
        "config.yaml",
        "vocabulary.json",
        "record.parquet",
        "dashboard.html",
    }
    for name in names:
        assert sha256_of(stored / name) == sha256_of(folder / name)


def test_start_and_end_are_those_of_the_run(folder, database):
    ((start, end),) = database.execute("SELECT start_time, end_time FROM runs")
    walls = load(folder).scalar(col.TIME_WALL) * 1000
    assert start < walls[0] < walls[-1] < end + 1 < start + 60_000


_AGAIN = """
import sys
from pathlib import Path
from runners.connection import Connection
from runners.shipper import Shipper, answers_on
connection = Connection(sys.argv[1], "loss-autopsy", Path(sys.argv[2]).parent)
shipper = Shipper(connection, answers_on(sys.stdout))
shipper.take({"folder": sys.argv[2]})
shipper.end()
"""


def ship_again(folder) -> dict:
    uri = f"sqlite:///{folder.parent / 'mlflow.db'}"
    command = [sys.executable, "-c", _AGAIN, uri, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_shipping_again_adds_no_point(folder, database):
    """MLflow keeps duplicates for good, so the second shipping must be the first."""
    count = "SELECT (SELECT count(*) FROM metrics), (SELECT count(*) FROM runs)"
    before = database.execute(count).fetchone()
    latest = database.execute("SELECT * FROM latest_metrics").fetchall()
    answer = ship_again(folder)
    assert answer["points"] == len(expected_steps(folder))
    assert database.execute(count).fetchone() == before
    assert database.execute("SELECT * FROM latest_metrics").fetchall() == latest


def test_a_run_can_be_pulled_from_the_store_alone(folder, autopsy, tmp_path, shell):
    """The folder is gone, as on another machine; the name is enough."""
    hidden = folder.rename(folder.with_name(".hidden"))
    try:
        answer = shell("show", "x", "--root", folder.parent)
        assert (answer.code, answer.err) == (0, "")
        (pulled,) = (folder.parent / ".pulled").iterdir()
        assert f"folder:      {pulled}" in answer.out
        assert sha256_of(pulled / "record.parquet") == sha256_of(
            hidden / "record.parquet"
        )
        filtered = "loss-autopsy: params.clip = '0.5' and tags.injection = 'scale'"
        assert "name:        x" in shell("show", filtered, "--root", folder.parent).out
    finally:
        hidden.rename(folder)


def test_points_are_in_mlflow_while_the_run_trains(spawn, root):
    """At most five seconds late, once the shipper is up."""
    process = spawn("train", "name=x", "steps=20000")
    wait_for(lambda: (root / "x" / "mlflow.json").is_file())
    wait_for(lambda: shipped_steps(root, "x"))
    time.sleep(3)
    behind = time.time() * 1000 - latest_timestamp(root)
    process.terminate()
    process.communicate(timeout=60)
    assert behind < 5000


def latest_timestamp(root) -> float:
    with sqlite3.connect(root / "mlflow.db") as database:
        return database.execute("SELECT max(timestamp) FROM metrics").fetchone()[0]


def test_an_unusable_store_costs_no_step(shell, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mlflow.db").write_bytes(b"garbage" * 1000)
    answer = shell("train", "name=x", "steps=20")
    assert answer.code == 0
    assert "experiments/x: finished, 20 steps" in answer.out
    assert "not complete in MLflow: x: MLflow store" in answer.out
    assert "`autopsy sync` completes MLflow" in answer.out
    assert "file is not a database" in answer.out
    assert answer.err == ""
    assert len(load(tmp_path / "experiments" / "x")) == 20
