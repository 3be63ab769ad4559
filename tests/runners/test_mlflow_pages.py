"""What the shipper writes on the pages of runs and sweeps, with a store in memory."""

from __future__ import annotations

import pytest

from analysis.history import load
from analysis.summary import FINAL_LOSS, FLAGGED, SUMMARY_KEYS, summarise
from minigpt.records import TIME_WALL, TRAIN_LOSS
from runners.curves import CADENCE_CURVES, CURVES, LOSS_EMA
from runners.folders import read_link
from runners.mlflow_view import PREFIX, VIEW
from runners.owner import owner
from tests.runners.commands import run
from tests.runners.memory_store import Process, a_sweep, change

NOTE = "mlflow.note.content"
HOSTILE = "<script>alert(1)</script> [x](javascript:alert(1)) | `a`\n# b"


def only_run(store):
    (mlflow_run,) = store.runs.values()
    return mlflow_run


def summary_rows(mlflow_run) -> dict[str, tuple]:
    """Key -> step, time, value; one row a key or it fails."""
    rows = [row for row in mlflow_run.metrics if row[0] in SUMMARY_KEYS]
    found = {key: (step, time, float(value)) for key, step, time, value in rows}
    assert len(found) == len(rows)
    return found


# -- summary metrics -------------------------------------------------------------------


def test_the_summary_is_shipped_once_at_its_steps(process, store, copied):
    process.follow(copied).end()
    found = summary_rows(only_run(store))
    history = load(copied)
    expected = summarise(history).figures
    assert found.keys() == expected.keys()
    walls = history.scalar(TIME_WALL)
    for key, (step, time, value) in found.items():
        assert (value, step) == (expected[key].value, expected[key].step)
        assert time == int(walls[step] * 1000)
    assert found[FINAL_LOSS][2] == history.scalar(TRAIN_LOSS)[-1]


def test_a_run_has_no_more_metrics_than_a_person_can_look_at(process, store, copied):
    process.follow(copied).end()
    shipped = {row[0] for row in only_run(store).metrics}
    assert shipped <= {*CURVES, *CADENCE_CURVES, LOSS_EMA, *SUMMARY_KEYS}
    assert len({*CURVES, *CADENCE_CURVES, LOSS_EMA, *SUMMARY_KEYS}) <= 30


def test_shipping_again_doubles_no_summary_and_changes_no_note(process, store, copied):
    process.follow(copied).end()
    before = summary_rows(only_run(store)), only_run(store).tags[NOTE]
    Process().follow(copied).end()
    assert (summary_rows(only_run(store)), only_run(store).tags[NOTE]) == before


def test_a_killed_run_may_go_on_so_its_summary_is_in_its_note_only(
    process, store, tmp_path
):
    def stop(name, step, steps, loss):
        if step == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("steps=30", "name=x", root=tmp_path, on_step=stop)
    process.follow(tmp_path / "x").end()
    assert summary_rows(only_run(store)) == {}
    assert "| final loss |" in only_run(store).tags[NOTE]
    assert "**killed**, 12 of 30 steps recorded" in only_run(store).tags[NOTE]


def test_a_run_that_went_to_nan_says_where(process, store, tmp_path):
    run("steps=30", "name=x", "schedule.lr_max=1e30", "schedule.warmup_steps=0",
        root=tmp_path)  # fmt: skip
    process.follow(tmp_path / "x").end()
    found = summary_rows(only_run(store))
    step = found["summary/first_nonfinite_step"]
    assert step[2] == step[0] < 30
    assert FINAL_LOSS not in found
    assert all(abs(value) < 1e300 for _, _, value in found.values())


# -- notes -----------------------------------------------------------------------------


def test_a_note_is_there_while_the_run_trains_and_another_at_its_end(
    process, store, copied
):
    process.follow(copied)
    change(copied, status="running", owner=owner())
    process.shipper.advance()
    mlflow_run = only_run(store)
    change(copied, status="finished")
    assert "Status: **running**" in mlflow_run.tags[NOTE]
    process.end()
    assert "**finished**, 30 of 30 steps recorded" in mlflow_run.tags[NOTE]
    assert "| final loss |" in mlflow_run.tags[NOTE]
    assert "/artifacts/" not in mlflow_run.tags[NOTE]


def test_a_dashboard_in_the_folder_is_uploaded_and_linked(process, store, copied):
    (copied / "dashboard.html").write_text("x")
    process.follow(copied).end()
    mlflow_run = only_run(store)
    address = f"#/experiments/1/runs/{mlflow_run.info.run_id}/artifacts/dashboard.html"
    assert f"[dashboard]({address})" in mlflow_run.tags[NOTE]
    assert "dashboard.html" in mlflow_run.artifacts


@pytest.mark.parametrize("status", ["failed", "killed"])
def test_the_reason_of_an_end_is_text(process, store, copied, status):
    change(copied, status=status, error=HOSTILE)
    process.follow(copied).end()
    note = only_run(store).tags[NOTE]
    assert "Reason: &#60;script&#62;alert&#40;1&#41;" in note
    assert "<script" not in note
    assert "](javascript" not in note


def test_a_folder_that_cannot_be_read_is_said_in_its_note(process, store, copied):
    (copied / "record.parquet").write_bytes(b"x")
    process.follow(copied).end()
    assert "**failed**" in only_run(store).tags[NOTE]
    assert "Reason: " in only_run(store).tags[NOTE]


# -- sweeps ----------------------------------------------------------------------------


@pytest.fixture
def sweep(process, store, copied):
    """A sweep of one run, which is finished and not yet shipped."""
    return process.begin(a_sweep(copied)).follow(copied)


def parent_and_child(store):
    return sorted(store.runs.values(), key=lambda run: "sweep_parent" not in run.tags)


def test_the_note_of_a_sweep_has_a_row_a_run(sweep, store):
    sweep.end()
    parent, child = parent_and_child(store)
    _, _, loss = summary_rows(child)[FINAL_LOSS]
    _, _, flagged = summary_rows(child)[FLAGGED]
    row = f"| [healthy](#/experiments/1/runs/{child.info.run_id}) | &ensp;finished "
    (found,) = [line for line in parent.tags[NOTE].splitlines() if "[healthy]" in line]
    assert found.startswith(f"{row}| &ensp;{loss:.4g} |")
    assert found.endswith(f"| &ensp;{flagged:.0f} |")
    assert f"(#/experiments/1/runs/{parent.info.run_id})" in child.tags[NOTE]


def test_the_view_of_a_sweep_holds_its_runs(sweep, store):
    sweep.end()
    assert {PREFIX + VIEW, PREFIX + "sweep-s-1"} == store.experiment_tags.keys()
    parent, _ = parent_and_child(store)
    assert "viewStateShareKey=sweep-s-1&" in parent.tags[NOTE]


def test_a_child_that_was_shipped_twice_has_one_row(sweep, store):
    store.broken = True
    sweep.shipper.advance()
    store.broken = False
    sweep.end()
    parent, _ = parent_and_child(store)
    assert parent.tags[NOTE].count("[healthy]") == 1
    assert "&ensp;finished" in parent.tags[NOTE]


def test_a_child_keeps_its_link_to_the_sweep_when_it_is_shipped_again(
    sweep, store, copied
):
    sweep.end()
    parent, child = parent_and_child(store)
    assert read_link(copied)["parent"] == parent.info.run_id
    before = child.tags[NOTE]
    Process().follow(copied).end()
    assert child.tags[NOTE] == before


def test_a_sweep_on_a_store_that_stays_away_is_one_line_a_run(sweep, store, copied):
    store.broken = True
    assert sweep.end() == [{"folder": str(copied), "problem": "database is locked"}]
