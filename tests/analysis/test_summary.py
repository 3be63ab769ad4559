"""The summary of a run: which number, at which step, and what is left out."""

from __future__ import annotations

import numpy as np
import pytest

from analysis import summary as keys
from analysis.flags import find_flags
from analysis.history import load
from analysis.summary import Figure, RunSummary, summarise
from minigpt import records as col
from minigpt.records import RecordLayout, StepRecord

STEPS = 120
STATE = col.EXP_AVG_SQ_SUM + "w"
LAYOUT = RecordLayout(
    scalars=(
        col.TRAIN_LOSS,
        col.GRAD_NORM_PRECLIP,
        col.CLIP_COEF,
        col.DUPLICATE_ROWS,
    ),
    tensors=(col.GRAD_NORM + "w", STATE),
)


def healthy(steps=STEPS) -> dict[str, np.ndarray]:
    """Columns of a run whose loss falls and whose optimizer keeps its books."""
    gradient = 1.0 + 0.1 * np.sin(np.arange(steps))
    state, states = 0.0, []
    for norm in gradient.astype(np.float32).astype(float):
        state = 0.95 * state + 0.05 * norm**2
        states.append(state)
    return {
        col.TRAIN_LOSS: np.linspace(6, 2, steps),
        col.GRAD_NORM_PRECLIP: gradient,
        col.CLIP_COEF: np.ones(steps),
        col.DUPLICATE_ROWS: np.zeros(steps),
        col.GRAD_NORM + "w": gradient.copy(),
        STATE: np.array(states),
    }


@pytest.fixture
def history_of(build, tmp_path):
    """The history of a run with these columns, and this declared warmup."""

    def make(columns, warmup=20, layout=LAYOUT, **manifest):
        records = [
            StepRecord(
                step=step,
                scalars=np.array([columns[name][step] for name in layout.scalars]),
                tensors=np.array(
                    [columns[name][step] for name in layout.tensors], np.float32
                ),
                integers=np.zeros(0, np.uint64),
                arrays={},
                occasional={},
            )
            for step in range(len(next(iter(columns.values()))))
        ]
        schedule = {"kind": "cosine"} | (
            {} if warmup is None else {"warmup_steps": warmup}
        )
        facts = build.facts | {"schedule": schedule}
        return load(
            build.run(tmp_path / "run", records, layout, facts=facts, **manifest)
        )

    return make


def test_a_healthy_run(history_of):
    columns = healthy()
    found = summarise(history_of(columns))
    assert found.steps == STEPS
    assert found.flags == ()
    assert found.figures.keys() == set(keys.SUMMARY_KEYS) - {keys.FIRST_NONFINITE}
    assert found.figures[keys.FINAL_LOSS] == Figure(2.0, STEPS - 1)
    assert found.figures[keys.PEAK_LOSS] == Figure(columns[col.TRAIN_LOSS][20], 20)
    assert found.figures[keys.DUPLICATES] == Figure(0.0, 0)
    assert found.figures[keys.FLAGGED] == Figure(0.0, STEPS - 1)
    assert found.figures[keys.LARGEST_RESIDUAL].value < 1e-5


def test_extremes_are_where_they_were_met(history_of):
    columns = healthy()
    columns[col.TRAIN_LOSS][70] = 9.5
    columns[col.GRAD_NORM_PRECLIP][80] = 55.0
    columns[col.DUPLICATE_ROWS][90] = 7
    columns[STATE][100] *= 100
    found = summarise(history_of(columns)).figures
    assert found[keys.PEAK_LOSS] == Figure(9.5, 70)
    assert found[keys.LARGEST_NORM] == Figure(55.0, 80)
    assert found[keys.DUPLICATES] == Figure(7.0, 90)
    # the step after is further off: its state should follow from the damaged one
    assert found[keys.LARGEST_RESIDUAL].step == 101
    assert found[keys.LARGEST_RESIDUAL].value > 1


def test_a_jump_of_the_loss_is_told_wherever_the_loss_then_was(history_of):
    columns = healthy()
    before = np.median(columns[col.TRAIN_LOSS][10:110])
    columns[col.TRAIN_LOSS][110] = before + 1.0
    found = summarise(history_of(columns)).figures
    assert found[keys.LOSS_JUMP].step == 110
    assert found[keys.LOSS_JUMP].value == pytest.approx(1.0)
    assert found[keys.PEAK_LOSS].step == 20  # which the peak does not tell


def test_the_warmup_is_passed_over(history_of):
    columns = healthy()
    columns[col.GRAD_NORM_PRECLIP][19] = 99.0
    columns[col.GRAD_NORM_PRECLIP][20] = 9.0
    assert summarise(history_of(columns)).figures[keys.LARGEST_NORM] == Figure(9.0, 20)


@pytest.mark.parametrize("warmup", [None, STEPS, "long"])
def test_without_a_usable_warmup_the_first_tenth_is(history_of, warmup):
    columns = healthy()
    columns[col.GRAD_NORM_PRECLIP][11] = 99.0
    columns[col.GRAD_NORM_PRECLIP][12] = 9.0
    found = summarise(history_of(columns, warmup)).figures
    assert found[keys.LARGEST_NORM] == Figure(9.0, 12)


def test_a_warmup_of_nothing_passes_over_nothing(history_of):
    assert summarise(history_of(healthy(), 0)).figures[keys.PEAK_LOSS].step == 0


def test_flags_are_those_of_find_flags(history_of):
    columns = healthy()
    columns[col.GRAD_NORM_PRECLIP][80] = 55.0
    history = history_of(columns)
    found = summarise(history)
    assert list(found.flags) == find_flags(history)
    assert found.figures[keys.FLAGGED] == Figure(float(len(found.flags)), STEPS - 1)
    assert found.flags


def test_extremes_are_finite_and_the_first_nonfinite_step_is_told(history_of):
    columns = healthy()
    columns[col.TRAIN_LOSS][60:] = np.nan
    columns[col.TRAIN_LOSS][40] = np.inf
    columns[col.GRAD_NORM_PRECLIP][30] = np.inf
    columns[STATE][50] = np.inf
    found = summarise(history_of(columns)).figures
    assert keys.FINAL_LOSS not in found
    assert found[keys.FIRST_NONFINITE] == Figure(30.0, 30)
    assert found[keys.PEAK_LOSS].step == 20
    assert all(np.isfinite(figure.value) for figure in found.values())


def test_a_run_of_nan_has_what_is_left(history_of):
    columns = healthy()
    columns[col.TRAIN_LOSS][:] = np.nan
    columns[col.GRAD_NORM_PRECLIP][:] = np.nan
    columns[STATE][:] = np.nan
    found = summarise(history_of(columns)).figures
    assert found.keys() == {keys.FIRST_NONFINITE, keys.DUPLICATES, keys.FLAGGED}
    assert found[keys.FIRST_NONFINITE] == Figure(0.0, 0)


@pytest.mark.parametrize("status", ["killed", "failed"])
def test_a_run_that_ended_early_has_a_summary_as_far_as_it_goes(history_of, status):
    found = summarise(history_of(healthy(7), status=status))
    assert found.steps == 7
    assert found.figures[keys.FINAL_LOSS] == Figure(2.0, 6)
    assert found.figures[keys.PEAK_LOSS] == Figure(6.0, 0)


def test_a_run_without_a_step_has_none(build, tmp_path):
    folder = build.run(tmp_path / "run", [], LAYOUT)
    assert summarise(load(folder)) == RunSummary()


def test_a_record_of_other_columns_has_what_they_tell(history_of):
    layout = RecordLayout(scalars=(col.TRAIN_LOSS,))
    columns = {col.TRAIN_LOSS: np.linspace(6, 2, STEPS)}
    found = summarise(history_of(columns, layout=layout)).figures
    losses = {keys.FINAL_LOSS, keys.PEAK_LOSS, keys.LOSS_JUMP}
    assert found.keys() == {*losses, keys.FLAGGED}
