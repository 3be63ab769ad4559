"""Every file of conf/experiment composes and runs, by the command itself."""

from __future__ import annotations

import json

import pytest

from analysis.history import load
from minigpt.records import DUPLICATE_ROWS, GRAD_NORM_PRECLIP
from runners.compose import compose_config
from runners.override_errors import CONF_DIR

EXPERIMENTS = sorted(path.stem for path in (CONF_DIR / "experiment").glob("*.yaml"))


def test_there_are_experiments():
    assert "18-baseline" in EXPERIMENTS


@pytest.mark.parametrize("stem", EXPERIMENTS)
def test_an_experiment_runs_for_two_steps(autopsy, tmp_path, stem):
    choices = [f"experiment={stem}", "steps=2", "injection_step=1", "tracking=none"]
    answer = autopsy("train", *choices)
    assert (answer.code, answer.err) == (0, "")
    name = compose_config(choices).name
    folder = tmp_path / "experiments" / name
    assert f"experiments/{name}: finished, 2 steps" in answer.out
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["experiment"] == stem
    assert manifest["status"] == "finished"
    history = load(folder)
    assert (len(history), history.notes) == (2, [])


def test_the_faults_act_at_the_step_that_was_asked_for(autopsy, tmp_path):
    """Two steps are enough to see that ``injection_step=1`` reached the fault."""
    shown = {}
    for stem in ("18-baseline", "19-injection-A", "19-injection-B", "19-injection-C"):
        choices = ("steps=2", "injection_step=1", "tracking=none")
        assert autopsy("train", f"experiment={stem}", *choices).code == 0
        shown[stem[-1]] = load(tmp_path / "experiments" / stem)
    norms = {key: run.scalar(GRAD_NORM_PRECLIP) for key, run in shown.items()}
    assert norms["A"][1] / norms["e"][1] == pytest.approx(50, rel=1e-4)
    assert norms["C"].tolist() == norms["e"].tolist()
    assert shown["B"].scalar(DUPLICATE_ROWS).tolist() == [0, 8]
    sums = {
        key: run.scalar("exp_avg_sq_sum/lm_head.bias") for key, run in shown.items()
    }
    assert sums["C"][1] / sums["e"][1] == pytest.approx(100, rel=1e-4)
