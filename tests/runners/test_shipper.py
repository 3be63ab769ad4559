"""The shipper's decisions, with a store in memory: what is shipped, retried, closed."""

from __future__ import annotations

import io
import json
import os
import shutil

import pytest

from analysis.history import load
from analysis.parquet import sha256_of
from minigpt.records import VAL_LOSS
from runners.connection import Connection
from runners.folders import read_link
from runners.mlflow_tags import NOTE, SWEEP_COLOR
from runners.owner import owner
from runners.shipper import Shipper, answers_on
from tests.runners.commands import run
from tests.runners.memory_store import Process, a_sweep, change, shipped_steps
from tests.runners.stored import expected_steps

# -- one run ---------------------------------------------------------------------------


def test_a_finished_folder_becomes_a_finished_run(process, store, copied):
    (answer,) = process.follow(copied).end()
    (mlflow_run,) = store.runs.values()
    steps = expected_steps(copied)
    assert shipped_steps(mlflow_run) == steps
    assert answer == {
        "folder": str(copied),
        "run_id": mlflow_run.info.run_id,
        "points": len(steps),
    }
    assert mlflow_run.status == "FINISHED"
    assert mlflow_run.artifacts == {
        name: sha256_of(copied / name)
        for name in (
            "manifest.json",
            "config.yaml",
            "vocabulary.json",
            "record.parquet",
        )
    }
    assert mlflow_run.tags["record_sha256"] == mlflow_run.artifacts["record.parquet"]
    assert read_link(copied)["complete"] is True


def test_params_and_tags_tell_runs_apart(process, store, copied):
    process.follow(copied).end()
    (mlflow_run,) = store.runs.values()
    params, tags = mlflow_run.params, mlflow_run.tags
    assert mlflow_run.info.name == "healthy"
    assert (params["clip"], params["seed"], params["steps"]) == ("1.0", "42", "30")
    assert params["experiment"] == "null"
    assert params["injection.kind"] == params["optimizer.kind"].replace("adamw", "none")
    assert not [key for key in params if key.startswith(("tracking", "paths"))]
    assert not [key for key in params if "predictions" in key]
    wanted = {"injection": "none", "loader": "random", "clip": "1.0", "seed": "42"}
    wanted |= {"data_seed": "42", "status": "finished"}
    assert wanted.items() <= tags.items()
    manifest = json.loads((copied / "manifest.json").read_text())
    for key in ("config_hash", "code_hash"):
        assert tags[key] == manifest[key]
    assert tags["git.commit"] == manifest["git"]["commit"]


def test_live_and_afterwards_ship_the_same(store, tmp_path):
    live, afterwards = Process(), Process()

    def follow(name, step, steps, loss):
        if step == 0:
            live.follow(tmp_path / name)
        live.shipper.advance()

    folder = run("steps=150", "name=x", "injection=scale", "injection_step=120",
                 "cadence.validation=40", "checkpoint.every=25", root=tmp_path,
                 on_step=follow).folder  # fmt: skip
    (mlflow_run,) = store.runs.values()
    assert 0 < len(shipped_steps(mlflow_run)) < len(expected_steps(folder))
    assert mlflow_run.status == "RUNNING"
    (first,) = live.end()
    assert shipped_steps(mlflow_run) == expected_steps(folder)
    assert shipped_steps(mlflow_run, VAL_LOSS) == [0, 40, 80, 120]

    (folder / "mlflow.json").unlink()
    (second,) = afterwards.follow(folder).end()
    assert first["points"] == second["points"]
    assert store.runs[second["run_id"]].metrics == mlflow_run.metrics


def test_a_page_is_attached_once_its_run_is_complete(process, store, copied):
    page = copied / "dashboard.html"
    process.follow(copied)
    page.write_text("a page")  # drawn when the run had ended, so later than its note
    process.attach(page).end()
    (mlflow_run,) = store.runs.values()
    assert mlflow_run.artifacts["dashboard.html"] == sha256_of(page)
    address = f"runs/{mlflow_run.info.run_id}/artifacts/dashboard.html"
    assert address in mlflow_run.tags[NOTE]


def test_a_page_that_cannot_be_attached_is_a_problem(process, store, copied):
    (complete, problem) = process.follow(copied).attach(copied / "gone.html").end()
    assert "problem" not in complete
    assert "gone.html" in problem["problem"]


def test_the_page_of_a_run_that_could_not_begin_is_attached_at_the_end(
    process, store, copied
):
    (copied / "dashboard.html").write_text("a page")
    store.broken = True
    process.follow(copied).attach(copied / "dashboard.html")
    store.broken = False
    (answer,) = process.end()
    assert "problem" not in answer
    (mlflow_run,) = store.runs.values()
    assert "dashboard.html" in mlflow_run.artifacts


def test_shipping_again_adds_nothing(store, copied):
    for _ in range(2):
        Process().follow(copied).end()
        (mlflow_run,) = store.runs.values()
        found = len(mlflow_run.metrics), dict(mlflow_run.tags), mlflow_run.times
        assert mlflow_run.status == "FINISHED"
    Process().follow(copied).end()
    assert (len(mlflow_run.metrics), mlflow_run.tags, mlflow_run.times) == found


def test_times_are_those_of_the_run_and_not_of_the_shipping(process, store, copied):
    change(copied, started_at="2026-01-02T03:04:05.678+00:00")
    change(copied, ended_at="2026-01-02T03:05:05.678+00:00")
    process.follow(copied).end()
    (mlflow_run,) = store.runs.values()
    assert mlflow_run.times == (1767323045678, 1767323105678)


# -- runs that did not finish ----------------------------------------------------------


def unclosed(copied, steps=12, **who):
    """The folder of a run whose process wrote ``steps`` steps and no more."""
    shutil.rmtree(copied)
    journal = []

    def keep(name, step, steps_, loss):
        if step == steps:
            journal.append((copied / "journal.bin").read_bytes())
            journal.append(json.loads((copied / "manifest.json").read_text()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("steps=30", "name=healthy", f"checkpoint.every={steps}",
            root=copied.parent, on_step=keep)  # fmt: skip
    (copied / "record.parquet").unlink()
    (copied / "journal.bin").write_bytes(journal[0])
    manifest = journal[1] | {"owner": owner() | who}
    (copied / "manifest.json").write_text(json.dumps(manifest))
    return copied


def test_a_killed_process_leaves_a_killed_run_and_a_closed_folder(
    process, store, copied
):
    folder = unclosed(copied, started="1")
    (answer,) = process.follow(folder).end()
    (mlflow_run,) = store.runs.values()
    assert mlflow_run.status == "KILLED"
    assert mlflow_run.tags["status"] == "killed"
    assert shipped_steps(mlflow_run) == [0, 10]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["status"], manifest["record"]["rows"]) == ("killed", 12)
    assert "died" in manifest["error"]
    assert not (folder / "journal.bin").exists()
    assert load(folder).notes == ["the run's status is killed"]
    assert mlflow_run.artifacts["record.parquet"] == manifest["record"]["sha256"]
    assert answer["points"] == 2


def test_a_killed_process_on_a_full_disk_is_shipped_from_its_journal(
    process, store, copied, monkeypatch
):
    def no_room(*_):
        raise OSError(28, "No space left on device")

    folder = unclosed(copied, started="1")
    monkeypatch.setattr("runners.closing.write_parquet", no_room)
    process.follow(folder).end()
    (mlflow_run,) = store.runs.values()
    assert mlflow_run.status == "KILLED"
    assert shipped_steps(mlflow_run) == [0, 10]
    assert "journal.bin" in mlflow_run.artifacts
    assert len(load(folder)) == 12


def test_a_journal_that_ends_in_half_a_block_is_kept_beside_its_closed_form(
    process, copied
):
    folder = unclosed(copied, started="1")
    with (folder / "journal.bin").open("ab") as journal:
        journal.write(b"\x93BLK half")
    process.follow(folder).end()
    assert (folder / "journal.bin").exists()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["record"]["rows"] == 12
    assert "unfinished block" in manifest["record"]["note"]
    assert len(load(folder)) == 12


def test_a_process_that_found_no_room_for_its_manifest_leaves_its_folder_alone(
    process, store, copied, monkeypatch
):
    """It lives, so the folder is its own; but the run is over and MLflow is told."""
    monkeypatch.setattr("runners.follower.os.getppid", os.getpid)
    folder = unclosed(copied)
    before = (folder / "manifest.json").read_bytes()
    process.follow(folder).end()
    (mlflow_run,) = store.runs.values()
    assert mlflow_run.status == "KILLED"
    assert shipped_steps(mlflow_run) == [0, 10]
    assert set(mlflow_run.artifacts) >= {"journal.bin", "manifest.json"}
    assert (folder / "manifest.json").read_bytes() == before


def test_a_run_that_somebody_resumed_a_moment_ago_is_not_ended(process, store, copied):
    folder = unclosed(copied)  # its process lives and is not the shipper's parent
    (answer,) = process.follow(folder).end()
    assert answer == {"folder": str(folder), "problem": "its process is alive"}
    assert {run.status for run in store.runs.values()} <= {"RUNNING"}


def test_a_run_killed_before_its_first_block_is_closed_too(process, store, copied):
    folder = unclosed(copied, started="1")
    data = (folder / "journal.bin").read_bytes()
    (folder / "journal.bin").write_bytes(data[: data.index(b"\x93BLK")])
    process.follow(folder).end()
    (mlflow_run,) = store.runs.values()
    assert (mlflow_run.status, mlflow_run.metrics) == ("KILLED", set())


def test_a_run_goes_on_until_the_input_ends(process, store, copied):
    folder = unclosed(copied)
    process.follow(folder)
    for _ in range(3):
        process.shipper.advance()
    (mlflow_run,) = store.runs.values()
    assert mlflow_run.status == "RUNNING"
    assert shipped_steps(mlflow_run) == [0]  # step 10 waits for ten more steps
    assert process.answers == []


@pytest.mark.parametrize("status", ["failed", "killed"])
def test_a_reason_is_a_tag(process, store, copied, status):
    change(copied, status=status, error="OSError: " + "x" * 9000)
    process.follow(copied).end()
    (mlflow_run,) = store.runs.values()
    assert mlflow_run.status == status.upper()
    assert mlflow_run.tags["error"] == ("OSError: " + "x" * 9000)[:5000]


# -- a store that fails, folders that are damaged --------------------------------------


def test_what_failed_for_a_moment_is_made_good_at_the_end(process, store, copied):
    process.follow(copied)
    store.broken = True
    process.shipper.advance()
    store.broken = False
    (answer,) = process.end()
    (mlflow_run,) = store.runs.values()
    assert "problem" not in answer
    assert shipped_steps(mlflow_run) == expected_steps(copied)
    assert mlflow_run.status == "FINISHED"


def test_a_run_that_could_not_even_begin_is_made_good_at_the_end(
    process, store, copied
):
    store.broken = True
    process.follow(copied)
    store.broken = False
    (answer,) = process.end()
    assert store.runs[answer["run_id"]].status == "FINISHED"


def test_a_store_that_stays_away_is_one_line_a_run(process, store, copied):
    other = shutil.copytree(copied, copied.parent / "other")
    process.follow(copied, other)
    store.broken = True
    answers = process.end()
    assert [answer["folder"] for answer in answers] == [str(copied), str(other)]
    assert {answer["problem"] for answer in answers} == {"database is locked"}
    assert read_link(copied) is None


def test_a_damaged_folder_fails_alone(process, store, copied):
    other = shutil.copytree(copied, copied.parent / "other")
    (copied / "record.parquet").write_bytes(b"x")
    bad, good = process.follow(copied, other).end()
    if "problem" not in bad:
        bad, good = good, bad
    assert bad["folder"] == str(copied)
    assert "expected sha256" in bad["problem"]
    statuses = [mlflow_run.status for mlflow_run in store.runs.values()]
    assert statuses == ["FAILED", "FINISHED"]
    assert store.runs[good["run_id"]].status == "FINISHED"


def test_a_damaged_link_is_named_and_no_second_run_is_made(process, store, copied):
    (copied / "mlflow.json").write_text("{")
    (answer,) = process.follow(copied).end()
    assert "mlflow.json: expected a JSON object" in answer["problem"]
    assert store.runs == {}


def test_a_folder_that_is_gone_is_a_problem_and_no_crash(process, copied):
    shutil.rmtree(copied)
    (answer,) = process.follow(copied).end()
    assert "expected a run folder, found no such folder" in answer["problem"]


@pytest.mark.parametrize("gone", ["another store", "deleted"])
def test_a_run_that_the_store_has_not_is_made_anew(store, copied, gone):
    Process().follow(copied).end()
    ((run_id, mlflow_run),) = store.runs.items()
    if gone == "deleted":
        mlflow_run.info.lifecycle_stage = "deleted"
    else:
        store.create_run("1", tags={})
        del store.runs[run_id]
    (answer,) = Process().follow(copied).end()
    assert answer["run_id"] != run_id
    assert read_link(copied)["run_id"] == answer["run_id"]
    assert len(store.runs) == 2


def test_a_training_process_that_is_gone_hears_nothing(store, copied):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    shipper = Shipper(
        Connection("sqlite:///x", "lab", copied.parent), answers_on(Gone())
    )
    shipper.take({"folder": str(copied)})
    shipper.end()
    assert [one.status for one in store.runs.values()] == ["FINISHED"]


# -- sweeps ----------------------------------------------------------------------------


def test_a_sweep_is_a_parent_and_its_children(process, store, copied):
    sweep = a_sweep(copied, "failed", "n" * 999)
    process.begin(sweep).follow(copied)
    process.shipper.advance()
    process.end()
    parent, child = sorted(store.runs.values(), key=lambda run: len(run.tags))
    assert parent.info.name == "n" * 250
    described = parent.tags.pop("mlflow.note.content")
    assert parent.tags == {
        "sweep": "s-1",
        "sweep_parent": "true",
        "swept": "n" * 999,
        "loss_autopsy.key": "k" * 32,
        "mlflow.runColor": SWEEP_COLOR,
    }
    assert child.info.run_id in described
    assert parent.status == "FAILED"
    assert child.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.tags["sweep"] == "s-1"
    assert child.status == "FINISHED"
    assert read_link(sweep)["complete"]


def test_shipping_a_sweep_again_makes_no_second_parent(store, copied):
    sweep = a_sweep(copied)
    for _ in range(2):
        Process().begin(sweep).follow(copied).end()
        assert len(store.runs) == 2
    (copied / "mlflow.json").unlink()
    Process().follow(copied).end()
    assert len(store.runs) == 2


def test_a_sweep_whose_process_died_was_killed(process, store, copied):
    sweep = a_sweep(copied, "running")
    document = json.loads((sweep / "sweep.json").read_text())
    document["owner"]["started"] = "1"
    (sweep / "sweep.json").write_text(json.dumps(document))
    process.begin(sweep).end()
    (parent,) = store.runs.values()
    assert parent.status == "KILLED"


def test_a_sweep_that_goes_on_is_not_ended(process, store, copied):
    sweep = a_sweep(copied, "running")
    process.begin(sweep).end()
    (parent,) = store.runs.values()
    assert parent.status == "RUNNING"
    assert read_link(sweep) is None


def test_a_store_that_was_away_when_a_sweep_began_has_its_parent_later(
    process, store, copied
):
    store.broken = True
    process.begin(a_sweep(copied)).follow(copied)
    process.shipper.advance()
    store.broken = False
    (done,) = process.end()
    assert "mlflow.parentRunId" in store.runs[done["run_id"]].tags


def test_the_runs_of_a_sweep_whose_folder_is_gone_have_no_parent(
    process, store, copied
):
    change(copied, sweep="s-1")
    (done,) = process.follow(copied).end()
    assert "mlflow.parentRunId" not in store.runs[done["run_id"]].tags


def test_a_damaged_sweep_is_a_problem_of_its_runs(process, store, copied):
    (a_sweep(copied) / "sweep.json").write_text("{}")
    (answer,) = process.follow(copied).end()
    assert "sweep.json: expected the state of a sweep" in answer["problem"]
    assert store.runs == {}
