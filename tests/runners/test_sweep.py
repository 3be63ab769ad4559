"""Multiruns with a real store: sixteen runs under one parent, and sweeps that fail."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from analysis.history import load
from minigpt.records import TRAIN_LOSS
from tests.runners.commands import AUTOPSY, wait_for
from tests.runners.stored import expected_steps, mlflow_runs, shipped_steps

pytestmark = pytest.mark.slow

INJECTIONS = ("none", "scale", "bad_batch", "v_corrupt")
GRID = list(product(INJECTIONS, ("0.5", "1.0"), ("random", "stratified")))
NAMES = [
    f"{injection}-clip{clip}-{loader}-s42-n510" for injection, clip, loader in GRID
]


@pytest.fixture(scope="module")
def swept(empty_store, tmp_path_factory) -> Path:
    """The root of the sweep that the issue names."""
    working = tmp_path_factory.mktemp("swept")
    (working / "experiments").mkdir()
    (working / "experiments" / "mlflow.db").write_bytes(empty_store.read_bytes())
    choices = [f"injection={','.join(INJECTIONS)}", "clip=0.5,1.0"]
    choices += ["loader=random,stratified", "steps=510"]
    command = [AUTOPSY, "train", "-m", *choices]
    done = subprocess.run(command, cwd=working, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "16 of 16 runs finished" in done.stdout
    return working / "experiments"


def rows(root, query, *values):
    with sqlite3.connect(root / "mlflow.db") as database:
        return database.execute(query, values).fetchall()


def test_the_sixteen_runs_are_sixteen_folders(swept):
    folders = {path.name for path in swept.iterdir() if path.name[0] != "."}
    assert folders - {"mlflow.db", "mlflow.db.lock", "mlartifacts"} == set(NAMES)
    assert {len(load(swept / name)) for name in NAMES} == {510}


def test_they_are_told_apart_by_name_in_mlflow(swept):
    runs = mlflow_runs(swept)
    assert len(runs) == 17
    assert set(NAMES) < set(runs)
    assert set(runs.values()) == {"FINISHED"}


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ("params", ("injection.kind", "clip", "loader.kind")),
        ("tags", ("injection", "clip", "loader")),
    ],
)
def test_they_are_told_apart_by_params_and_tags(swept, where, keys):
    query = f"SELECT value FROM {where} JOIN runs USING (run_uuid) "
    query += "WHERE name = ? AND key = ?"
    found = [
        tuple(rows(swept, query, name, key)[0][0] for key in keys) for name in NAMES
    ]
    assert found == GRID


def test_they_have_one_parent_that_is_named_for_the_sweep(swept):
    ((parent, name),) = rows(
        swept,
        "SELECT run_uuid, name FROM runs JOIN tags USING (run_uuid) "
        "WHERE key = 'sweep_parent'",
    )
    assert name == (
        "injection=none,scale,bad_batch,v_corrupt clip=0.5,1.0 "
        "loader=random,stratified steps=510"
    )
    children = rows(
        swept, "SELECT value, count(*) FROM tags WHERE key = 'mlflow.parentRunId'"
    )
    assert children == [(parent, 16)]
    (sweep,) = (path.name for path in (swept / ".sweeps").iterdir())
    assert rows(swept, "SELECT value, count(*) FROM tags WHERE key = 'sweep'") == [
        (sweep, 17)
    ]


def test_all_their_points_are_there(swept):
    for name in NAMES:
        assert shipped_steps(swept, name) == expected_steps(swept / name), name


def test_only_the_choices_make_a_difference(swept):
    """A clipped gradient scale changes nothing; the seeds are the same everywhere."""
    losses = {name: load(swept / name).scalar(TRAIN_LOSS) for name in NAMES}
    for clip, loader in product(("0.5", "1.0"), ("random", "stratified")):
        twin = losses[f"none-clip{clip}-{loader}-s42-n510"]
        for injection in INJECTIONS[1:]:
            run = losses[f"{injection}-clip{clip}-{loader}-s42-n510"]
            assert run[:500].tobytes() == twin[:500].tobytes()
            assert run.tobytes() != twin.tobytes()


def test_the_sweep_is_found_by_its_id_and_by_its_parent(swept, shell):
    (sweep,) = (path.name for path in (swept / ".sweeps").iterdir())
    answer = shell("show", sweep, "--root", swept)
    assert answer.code == 0
    assert [line.partition(":")[0] for line in answer.out.splitlines()] == NAMES
    ((parent,),) = rows(swept, "SELECT run_uuid FROM tags WHERE key = 'sweep_parent'")
    assert shell("show", parent, "--root", swept).out == answer.out


# -- sweeps that do not go well --------------------------------------------------------


def parent_status(root) -> str:
    query = "SELECT status FROM runs JOIN tags USING (run_uuid) WHERE key = ?"
    ((status,),) = rows(root, query, "sweep_parent")
    return status


def sweep_states(root) -> list[str]:
    (path,) = root.glob(".sweeps/*/sweep.json")
    return [job["status"] for job in json.loads(path.read_text())["jobs"]]


_FAILING = """
import sys
from runners import cli, train
execute = train.execute
def failing(config, tracker, on_step, *rest):
    def step(name, number, *more):
        on_step(name, number, *more)
        if name == "b" and number == 2:
            raise ArithmeticError("of job b")
    return execute(config, tracker, step, *rest)
train.execute = failing
cli.main()
"""


def test_a_failed_job_fails_its_run_and_the_parent_and_nothing_else(root, tmp_path):
    command = [sys.executable, "-c", _FAILING, "train", "-m", "name=a,b,c", "steps=5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "2 of 3 runs finished" in done.stdout
    assert "  b: failed: ArithmeticError: of job b" in done.stdout
    assert sweep_states(root) == ["finished", "failed", "finished"]
    assert parent_status(root) == "FAILED"
    runs = mlflow_runs(root)
    assert [runs[name] for name in "abc"] == ["FINISHED", "FAILED", "FINISHED"]
    assert shipped_steps(root, "b") == [0]  # it may go on, so 2 was not its last
    query = "SELECT value FROM tags JOIN runs USING (run_uuid) WHERE name=? AND key=?"
    assert rows(root, query, "b", "error") == [("ArithmeticError: of job b",)]


def test_ctrl_c_in_job_2_of_3(spawn, root):
    process = spawn("train", "-m", "name=a,b,c", "steps=900")
    wait_for(lambda: (root / "b" / "mlflow.json").is_file())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert sweep_states(root) == ["finished", "killed", "not started"]
    assert "  c: not started" in out
    assert parent_status(root) == "KILLED"
    runs = mlflow_runs(root)
    assert (runs["a"], runs["b"]) == ("FINISHED", "KILLED")
    assert "c" not in runs


def test_two_commands_that_meet_on_a_missing_store_both_finish(spawn, tmp_path):
    processes = [
        spawn("train", "-m", "seed=1,2", "steps=5", f"name={name}") for name in "ab"
    ]
    ends = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    root = tmp_path / "experiments"
    names = {"a", "a-2", "b", "b-2"}
    assert names < set(mlflow_runs(root))
    assert set(mlflow_runs(root).values()) == {"FINISHED"}
    for name in names:
        assert shipped_steps(root, name) == expected_steps(root / name) == [0, 4]
