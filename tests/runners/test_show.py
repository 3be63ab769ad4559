"""``autopsy show``: a few plain lines, also about what is damaged."""

from __future__ import annotations

import json
import shutil

import pytest

from analysis.history import load
from loss_autopsy import init
from minigpt.records import TRAIN_LOSS
from runners.owner import owner
from tests.runners.commands import run


def change(folder, **entries):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def facts(answer) -> dict[str, str]:
    assert (answer.code, answer.err) == (0, "")
    lines = (line.partition(":") for line in answer.out.splitlines())
    return {label: value.strip() for label, _, value in lines}


def test_a_finished_run_in_a_few_lines(autopsy, copied):
    loss = load(copied).scalar(TRAIN_LOSS)[-1]
    assert facts(autopsy("show", "healthy")) == {
        "name": "healthy",
        "folder": "experiments/healthy",
        "status": "finished",
        "steps": "30",
        "final loss": f"{loss:.4f} nats/token",
        "config hash": json.loads((copied / "manifest.json").read_text())[
            "config_hash"
        ],
        "MLflow run": "none",
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"run_id": "%s", "complete": true}', "%s"),
        ('{"run_id": "%s"}', "%s (not complete there)"),
        ("{", "experiments/healthy/mlflow.json: expected a JSON object"),
    ],
)
def test_the_run_in_mlflow(autopsy, copied, text, shown):
    run_id = "ab" * 16
    (copied / "mlflow.json").write_text(text.replace("%s", run_id))
    found = facts(autopsy("show", "healthy"))["MLflow run"]
    assert found.startswith(shown.replace("%s", run_id))


def test_a_run_whose_process_died_is_killed(autopsy, copied):
    change(copied, status="running", owner=owner() | {"started": "1"})
    found = facts(autopsy("show", "healthy"))
    assert found["status"] == "killed"
    assert "note 1" not in found  # what the record was read with is not said twice


def test_a_half_written_record_shows_what_is_there(autopsy, tmp_path):
    def stop(name, step, steps, loss):
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("steps=9", "name=x", root=tmp_path / "experiments", on_step=stop)
    found = facts(autopsy("show", "x"))
    assert found["status"] == "killed (KeyboardInterrupt)"
    assert found["steps"] == "7 of 9"


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda folder: (folder / "record.parquet").unlink(), "found neither"),
        (
            lambda folder: (folder / "record.parquet").write_bytes(b"x"),
            "expected sha256",
        ),
        (lambda folder: (folder / "manifest.json").write_text("{"), "JSON object"),
        (lambda folder: (folder / "manifest.json").unlink(), "no such run"),
        (lambda folder: change(folder, status="odd"), "manifest status: expected one"),
        (lambda folder: change(folder, record=5), "record: expected an object"),
        (lambda folder: change(folder, facts=[]), "manifest facts: expected dict"),
    ],
)
def test_a_damaged_folder_is_one_line_and_exit_2(autopsy, copied, damage, part):
    damage(copied)
    answer = autopsy("show", "healthy")
    assert answer.code == 2
    assert part in answer.line


@pytest.mark.parametrize(
    "entries",
    [
        {"config": 5, "config_hash": None, "error": ["a\nb"], "owner": 5},
        {"name": None, "config": {"steps": "many"}, "config_hash": "x" * 9999},
        {"name": "[red]x[/red] [/]"},
    ],
)
def test_a_foreign_manifest_is_shown_as_far_as_it_goes(autopsy, copied, entries):
    change(copied, **entries)
    found = facts(autopsy("show", "healthy"))
    assert found["steps"] == "30"
    assert found["name"] == (entries.get("name") or "healthy")
    assert len(found["config hash"]) <= 500


def test_a_bad_reference_is_one_line_and_exit_2(autopsy, copied):
    for reference in ("helthy", "./x", "", "a'b", "0" * 32, "lab: clip = '1'"):
        answer = autopsy("show", reference)
        assert answer.code == 2
        assert answer.line.startswith("autopsy: ")
    assert "close to it: healthy" in autopsy("show", "helthy").line


def sweep_of(copied, *names):
    root = copied.parent
    for name in names:
        shutil.copytree(copied, root / name)
        change(root / name, name=name, sweep="s-1", started_at=name)
    (root / ".sweeps" / "s-1").mkdir(parents=True)
    (root / ".sweeps" / "s-1" / "sweep.json").write_text("{}")


def test_a_sweep_is_one_line_a_run(autopsy, copied):
    sweep_of(copied, "a", "b")
    answer = autopsy("show", "s-1")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["a", "b"]
    assert all("status finished, steps 30, final loss" in line for line in lines)


def test_a_run_of_a_sweep_that_cannot_be_read_hides_no_other(autopsy, copied):
    sweep_of(copied, "a", "b", "c")
    (copied.parent / "b" / "record.parquet").write_bytes(b"")
    answer = autopsy("show", "s-1")
    assert answer.code == 1
    first, second, third = answer.out.splitlines()
    assert "expected sha256" in second
    assert (first[:2], second[:2], third[:2]) == ("a:", "b:", "c:")


def test_a_run_of_a_script_has_the_last_loss_that_was_logged(autopsy, tmp_path):
    root = tmp_path / "experiments"
    with init(name="mine", mode="offline", root=root) as run:
        run.log({"loss": 3.0}, step=0)
        run.log({"loss": 2.5}, step=10)
        run.log({"accuracy": 0.5}, step=20)
    answer = autopsy("show", "mine")
    assert "final loss:  2.5000 as logged" in answer.out
    assert "config hash: none: a script logged the run" in answer.out
    assert "steps:       3" in answer.out
