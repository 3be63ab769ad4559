"""Flags: each kind is found where it was planted, once, and nowhere in health."""

import numpy as np
import pytest

from analysis import flags
from analysis.flags import find_flags
from analysis.rule import DEFAULT_RULE
from minigpt import records as col
from tests.analysis.dashboard.runs import changed, full, history

QUIET = DEFAULT_RULE.quiet


def kinds_at(run):
    return {flag.step: flag.kinds for flag in find_flags(run)}


def series(run, name):
    """The column, to be changed: what a history has given out is read-only."""
    run.data.flat[name] = run.data.flat[name].copy()
    return run.data.flat[name]


def test_a_healthy_run_has_no_flag():
    assert find_flags(full(400)) == []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_run_too_short_to_judge_has_none(count):
    assert find_flags(full(count)) == []


@pytest.mark.parametrize(
    ("name", "value", "kind", "text"),
    [
        (col.TRAIN_LOSS, 9.0, flags.LOSS, "loss 9, robust z "),
        (col.GRAD_NORM_PRECLIP, 90.0, flags.NORM, "gradient norm 90, robust z "),
        (col.TRAIN_LOSS, np.nan, flags.NONFINITE, "the loss is nan"),
        (col.GRAD_NORM_PRECLIP, np.inf, flags.NONFINITE, "the gradient norm is inf"),
        (col.LR, 2e-3, flags.RATE, "learning rate 0.002, declared 0.001"),
        (col.LR, np.nan, flags.RATE, "learning rate nan, declared 0.001"),
        (col.LR, np.inf, flags.RATE, "learning rate inf, declared 0.001"),
        (col.DUPLICATE_ROWS, 8, flags.BATCH, "8 rows of the batch equal another"),
    ],
)
def test_what_was_planted_is_flagged_at_its_step(name, value, kind, text):
    run = full(400)
    series(run, name)[200] = value
    (flag,) = find_flags(run)
    assert (flag.step, flag.kinds) == (200, (kind,))
    assert flag.texts[0].startswith(text)


def test_a_changed_state_is_flagged_with_its_worst_tensor():
    run = full(400, tensors=3)
    for index, factor in ((0, 2.0), (2, 100.0)):
        series(run, f"{col.EXP_AVG_SQ_SUM}layer.{index}.weight")[200] *= factor
    found = {flag.step: flag for flag in find_flags(run)}
    assert set(found) == {200}  # step 201, where it falls back, belongs to it
    assert found[200].kinds == (flags.ACCOUNTING,)
    (text,) = found[200].texts
    assert text.endswith("residual 0.99 at layer.2.weight and in 1 more")


def test_a_state_that_was_lost_is_flagged_too():
    run = full(400)
    series(run, f"{col.EXP_AVG_SQ_SUM}layer.1.weight")[200] = 0.0
    (flag,) = find_flags(run)
    assert flag.step == 200
    assert flag.texts[0].endswith("residual inf at layer.1.weight")


def test_a_residual_below_the_limit_is_rounding():
    run = full(400)
    name = f"{col.EXP_AVG_SQ_SUM}layer.0.weight"
    series(run, name)[200] *= 1 + 0.5 * flags.RESIDUAL_LIMIT
    assert find_flags(run) == []
    series(run, name)[200] *= 1 + flags.RESIDUAL_LIMIT
    assert kinds_at(run) == {200: (flags.ACCOUNTING,)}


def test_a_run_that_stays_nan_has_one_flag():
    run = full(400)
    series(run, col.TRAIN_LOSS)[200:] = np.nan
    assert kinds_at(run) == {200: (flags.NONFINITE,)}


def test_a_nan_soon_after_a_spike_is_flagged_too():
    """It was taken for a part of the spike, and the run that died had no flag of it."""
    run = full(400)
    series(run, col.TRAIN_LOSS)[200] = 9.0
    series(run, col.TRAIN_LOSS)[200 + QUIET // 2 :] = np.nan
    assert kinds_at(run) == {
        200: (flags.LOSS,),
        200 + QUIET // 2: (flags.NONFINITE,),
    }


@pytest.mark.parametrize(("gap", "count"), [(QUIET, 1), (QUIET + 1, 2)])
@pytest.mark.parametrize(
    ("name", "value"),
    [(col.TRAIN_LOSS, 9.0), (col.LR, 1.0), (col.DUPLICATE_ROWS, 3.0)],
)
def test_an_event_ends_after_the_quiet_steps(name, value, gap, count):
    run = full(400)
    series(run, name)[[200, 200 + gap]] = value
    assert len(find_flags(run)) == count


def test_quiet_steps_are_counted_in_steps_and_not_in_rows():
    run = full(300, steps=np.arange(300) * 10)
    series(run, col.LR)[[200, 210]] = 1.0
    series(run, col.TRAIN_LOSS)[[200, 210]] = 9.0
    kinds = (flags.LOSS, flags.RATE)
    assert kinds_at(run) == {2000: kinds, 2100: kinds}


def test_kinds_of_one_step_are_one_flag_with_a_text_each():
    run = full(400)
    series(run, col.TRAIN_LOSS)[200] = np.nan
    series(run, col.GRAD_NORM_PRECLIP)[200] = np.inf
    series(run, col.DUPLICATE_ROWS)[200] = 2
    (flag,) = find_flags(run)
    assert flag.kinds == (flags.NONFINITE, flags.NONFINITE, flags.BATCH)
    assert flag.texts[:2] == ("the loss is nan", "the gradient norm is inf")


def test_rows_twice_are_only_odd_where_they_are_rare():
    run = full(400)
    series(run, col.DUPLICATE_ROWS)[[100, 200, 300, 399]] = 2
    assert len(find_flags(run)) == 4
    series(run, col.DUPLICATE_ROWS)[50] = 2  # 5 of 400 are more than 1 percent
    assert find_flags(run) == []


def test_a_record_of_the_loss_alone():
    """Its text named the norm as well, which is none: a TypeError."""
    loss = np.full(300, 2.0)
    loss[200] = 9.0
    assert kinds_at(history({col.TRAIN_LOSS: loss})) == {200: (flags.LOSS,)}


@pytest.mark.parametrize("name", [col.TRAIN_LOSS, col.LR, col.LR_DECLARED])
def test_a_missing_column_is_no_error(name):
    assert find_flags(changed(full(300), without=(name,))) == []


def test_a_rate_that_nobody_declared_is_not_off():
    run = changed(full(300), lr_declared=np.full(300, np.nan))
    assert find_flags(run) == []


@pytest.mark.parametrize("odd", [np.inf, -np.inf])
def test_the_same_infinite_rate_is_the_declared_one(odd):
    both = {"lr": np.full(300, odd), "lr_declared": np.full(300, odd)}
    assert find_flags(changed(full(300), **both)) == []


@pytest.mark.parametrize("value", [1e300, 1.7e308, 5e-324, -1e300, 0.0])
def test_extreme_numbers_raise_nothing(value):
    run = full(300)
    for name in list(run.data.flat):
        if name not in run.data.measured and name != col.BATCH_FINGERPRINT:
            with np.errstate(over="ignore"):
                series(run, name)[::3] = value
    assert all(flag.step < 300 for flag in find_flags(run))
    for name in (col.TRAIN_LOSS, col.GRAD_NORM_PRECLIP, col.LR):
        series(run, name)[:] = value
    assert all(flag.step < 300 for flag in find_flags(run))
