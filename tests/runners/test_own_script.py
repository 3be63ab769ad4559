"""The script of docs/your-own-script.md, word for word: run, killed, tracked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from analysis.accounting import accounting_residual
from analysis.dashboard.pages import draw_dashboard
from analysis.history import load
from analysis.summary import SUMMARY_KEYS
from minigpt import records as col
from runners.curves import OBSERVED_CURVES
from runners.folders import current_status, read_link
from tests.analysis.dashboard.page_checks import check
from tests.analysis.dashboard.runs import charts_of
from tests.runners.commands import wait_for
from tests.runners.stored import mlflow_points, mlflow_runs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "your-own-script.md"
(SCRIPT,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
BLOCK_SECONDS = 1.0  # what a killed run may lose


def offline(script):
    """The script as it would be without MLflow."""
    changed = script.replace('project="my-project"', 'mode="offline"')
    assert changed != script
    return changed


def spawn(script, folder):
    path = folder / "script.py"
    path.write_text(script)
    return subprocess.Popen(
        [sys.executable, str(path)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_script_is_short():
    lines = [line for line in SCRIPT.splitlines() if line.strip()]
    assert len(lines) <= 22


def test_it_records_every_update_and_draws_its_page(tmp_path):
    process = spawn(offline(SCRIPT), tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "")
    folder = tmp_path / "experiments" / "first"
    assert err == (
        "loss-autopsy: experiments/first: finished, 600 steps; `autopsy sync` brings "
        "it to MLflow\n"
    )
    run = load(folder)
    assert run.steps.tolist() == list(range(600))
    assert run.scalar(col.TRAIN_LOSS).tolist() == run.scalar("loss").tolist()
    assert np.isfinite(run.scalar("loss")).all()
    assert np.nanmax(accounting_residual(run).residual) < 1e-6
    assert run.measured("val_loss").sum() == 6
    charts = charts_of(check((folder / "dashboard.html").read_text(), "VH"))
    absent = {key for key, chart in charts.items() if chart["absent"]}
    assert absent == {
        *("spectral", "histogram", "classes", "duplicates", "rare", "logged-values")
    }


@pytest.mark.slow
def test_killed_in_the_middle_it_loses_a_second_at_most(tmp_path):
    """The script says after each step which it was, and when."""
    slow = offline(SCRIPT).replace("range(600)", "range(100_000)")
    marked = slow.replace(
        "        if step % 100 == 0:",
        "        print(step, flush=True)\n        if step % 100 == 0:",
    )
    assert marked != slow
    times: dict[int, float] = {}
    with spawn(marked, tmp_path) as process:
        for line in process.stdout:
            times[int(line)] = time.monotonic()
            if int(line) == 1500:
                break
        process.kill()
        killed_at = time.monotonic()
        rest = process.communicate()[0].splitlines()
    folder = tmp_path / "experiments" / "first"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert current_status(folder, manifest) == "killed"
    run = load(folder)
    last = int(run.steps[-1])
    assert run.steps.tolist() == list(range(last + 1))
    assert np.isfinite(run.scalar("loss")).all()
    said = 1500 + sum(line.isdigit() for line in rest)
    assert last <= said
    # Every step that was over a second before the kill is there.
    over = [step for step, at in times.items() if at < killed_at - BLOCK_SECONDS]
    assert last >= max(over)
    check(draw_dashboard(run), "VH")


@pytest.mark.slow
def test_it_is_tracked_in_mlflow_as_it_goes_on(root, tmp_path):
    """Killed, resumed by the same script, finished: one run, no point twice."""
    script = SCRIPT.replace('name="first"', 'name="first", resume=True')
    pause = "        __import__('time').sleep(0.01)\n        run.log({\"loss\""
    slow = script.replace('        run.log({"loss"', pause)
    assert slow != script
    folder = root / "first"
    with spawn(slow, tmp_path) as process:
        wait_for(lambda: len(shipped(root, "loss")) > 20)
        process.kill()
        process.communicate()
    wait_for(lambda: mlflow_runs(root) == {"first": "KILLED"})
    with spawn(script, tmp_path) as again:
        _, err = again.communicate(timeout=200)
    assert again.returncode == 0, err
    assert f"MLflow run {read_link(folder)['run_id']}" in err
    assert mlflow_runs(root) == {"first": "FINISHED"}
    record = load(folder)
    assert record.steps.tolist() == list(range(600))
    assert shipped(root, "loss") == dict(
        enumerate(map(repr, record.scalar("loss").tolist()))
    )
    points = mlflow_points(root, "first")
    assert set(points.values()) == {1}
    least = min(record.scalar("val_loss")[record.measured("val_loss")])
    assert [key for key, *_ in points].count("summary/val_loss") == 1
    assert repr(float(least)) in shipped(root, "summary/val_loss").values()
    rest = {key for key, *_ in points} - {"loss", "val_loss", "summary/val_loss"}
    assert rest == {*OBSERVED_CURVES, *SUMMARY_KEYS} - {
        *("summary/first_nonfinite_step", "summary/most_duplicate_rows")
    }


def shipped(root, key):
    """Step -> value of a key, as MLflow's store has it."""
    points = mlflow_points(root, "first")
    return {step: value for name, step, _, value in points if name == key}
