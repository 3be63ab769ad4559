"""Checks of a verification spec: read, refused, and computed on synthetic records."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from analysis.blocks import Columns
from analysis.ema import ema
from analysis.facts import RunFacts
from analysis.history import RunHistory
from analysis.verification import Outcome, check_from_plain, evaluate
from minigpt.records import (
    GRAD_NORM_POSTCLIP,
    GRAD_NORM_PRECLIP,
    TRAIN_LOSS,
    VAL_LOSS,
    InputError,
    RecordLayout,
)

PLAIN = {
    "code": "VF001",
    "claim": "loss at step 3 below 2.5",
    "kind": "max_in_window",
    "column": TRAIN_LOSS,
    "window": [3, 3],
    "limit": 2.5,
}


def check(**changes):
    return check_from_plain(PLAIN | changes)


def history(loss, norm=None, clip=1.0, unknown=(), name="a", val=None):
    """A record of these values, a step each."""
    loss = np.asarray(loss, np.float64)
    norm = np.ones(len(loss)) if norm is None else np.asarray(norm, np.float64)
    val = np.full(len(loss), np.nan) if val is None else np.asarray(val, np.float64)
    layout = RecordLayout(
        (TRAIN_LOSS, GRAD_NORM_PRECLIP, GRAD_NORM_POSTCLIP), occasional=(VAL_LOSS,)
    )
    flat = {TRAIN_LOSS: loss, GRAD_NORM_PRECLIP: norm, GRAD_NORM_POSTCLIP: norm}
    measured = {VAL_LOSS: ~np.isnan(val)}
    steps = np.arange(len(loss))
    columns = Columns(layout, steps, flat | {VAL_LOSS: val}, measured, {})
    facts = RunFacts("finished", clip=clip, unknown=unknown)
    return RunHistory(name, Path(name), steps, columns, facts)


# -- reading a check -------------------------------------------------------------------


def test_a_check_is_read_as_it_is_written():
    read = check(strict=True, unit="nats", window=[3, None], relative_tolerance=1e-5)
    assert (read.code, read.first, read.last, read.limit) == ("VF001", 3, None, 2.5)
    assert (read.strict, read.unit, read.relative_tolerance) == (True, "nats", 1e-5)
    assert (read.by_setting, check().strict, check().unit) == (None, False, "")


@pytest.mark.parametrize("key", ["code", "claim", "kind", "column", "limit", "window"])
def test_a_missing_key_is_named(key):
    plain = {name: value for name, value in PLAIN.items() if name != key}
    with pytest.raises(InputError, match=key) as caught:
        check_from_plain(plain)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("check ")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"limits": 2}, "expected keys code, claim, .*, window; got limits"),
        ({5: 2}, "got 5"),
        ({"first": 2}, "expected keys .*; got first"),
        ({"code": 5}, "code: expected str, got 5"),
        ({"code": " "}, "code: expected text"),
        ({"claim": None}, "claim: expected str, got None"),
        ({"kind": "min"}, "kind: expected one of max_in_window, ema_gap_to_baseline"),
        ({"column": ["x"]}, "column: expected str"),
        ({"limit": "2.5"}, "limit: expected float, got '2.5'"),
        ({"limit": True}, "limit: expected float, got True"),
        ({"limit": math.nan}, "limit: expected a finite number; got nan"),
        ({"limit": math.inf}, "limit: expected a finite number; got inf"),
        ({"strict": 1}, "strict: expected bool, got 1"),
        ({"relative_tolerance": -0.1}, "relative_tolerance: expected 0 or more"),
        ({"relative_tolerance": math.nan}, "relative_tolerance: expected 0 or more"),
        ({"by_setting": "status"}, "by_setting: expected clip, or nothing"),
        ({"by_setting": "__class__"}, "by_setting: expected clip"),
        ({"window": 3}, r"window: expected \[first, last\], got 3"),
        ({"window": [3]}, r"window: expected \[first, last\], got \[3\]"),
        ({"window": [1, 2, 3]}, r"window: expected \[first, last\]"),
        ({"window": [5, 3]}, r"window: expected first <= last; got \[5, 3\]"),
        ({"window": [-1, 3]}, r"window: expected a first step of 0 or more; got \[-1,"),
        ({"window": [None, 3]}, "first: expected int, got None"),
        ({"window": [0, 2.5]}, "last: expected int"),
        ({"window": [False, 3]}, "first: expected int, got False"),
    ],
)
def test_an_impossible_check_is_refused_in_one_line(change, expected):
    with pytest.raises(InputError, match=expected) as caught:
        check_from_plain(PLAIN | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("plain", [None, "VF001", 5, ["a"], [["a"]]])
def test_an_entry_that_is_no_check_is_refused(plain):
    with pytest.raises(InputError, match="checks: expected keys and values"):
        check_from_plain(plain)


# -- the largest value of a window -----------------------------------------------------


@pytest.mark.parametrize(
    ("value", "strict", "answer"),
    [
        (2.4, False, "passed"),
        (2.5, False, "passed"),
        (2.5, True, "failed"),
        (2.6, False, "failed"),
        (math.nan, False, "failed"),
        (math.inf, False, "failed"),
        (-math.inf, False, "failed"),
    ],
)
def test_the_limit_and_what_is_beyond_it(value, strict, answer):
    run = history([9, 9, 9, value, 9])
    outcome = evaluate(check(strict=strict), run)
    assert (outcome.answer, outcome.step) == (answer, 3)
    assert repr(outcome.observed) == repr(float(value))


def test_the_window_includes_both_its_ends():
    run = history([9, 1, 2, 3, 9])
    outcome = evaluate(check(window=[1, 3], limit=3), run)
    assert outcome == Outcome("passed", 3.0, 3)
    assert evaluate(check(window=[0, 3], limit=3), run).observed == 9
    assert evaluate(check(window=[1, 4], limit=3), run).step == 4


def test_an_open_window_reaches_to_the_end():
    assert evaluate(check(window=[1, None]), history([0, 0, 0, 7])).observed == 7


def test_nan_wins_over_a_larger_number():
    outcome = evaluate(check(window=[0, 3]), history([9, math.nan, math.inf, 9]))
    assert (outcome.answer, outcome.step) == ("failed", 1)
    assert math.isnan(outcome.observed)


def test_tolerance_widens_the_limit_also_below_zero():
    for limit in (2.0, -2.0):
        value = limit + 1e-5
        run = history([value], norm=[1])
        wide = check(window=[0, 0], limit=limit, relative_tolerance=1e-5)
        assert evaluate(check(window=[0, 0], limit=limit), run).answer == "failed"
        assert evaluate(wide, run).answer == "passed"


@pytest.mark.parametrize("window", [[4, 4], [0, 4], [9, None], [4, None]])
def test_a_record_that_ends_too_early_proves_nothing(window):
    outcome = evaluate(check(window=window), history([0, 0, 0, 0]))
    assert (outcome.answer, outcome.observed) == ("inconclusive", None)
    assert "the record ends at step 3" in outcome.reason


def test_a_column_that_is_not_there_is_named_with_what_is_close():
    with pytest.raises(
        InputError, match=r"expected column train/los, found close: .*loss"
    ):
        evaluate(check(column="train/los"), history([0] * 5))


def test_an_occasional_column_is_judged_where_it_was_measured():
    run = history([0] * 6, val=[1, math.nan, math.nan, 3, math.nan, math.nan])
    outcome = evaluate(check(column=VAL_LOSS, window=[0, 5]), run)
    assert outcome == Outcome("failed", 3.0, 3)
    outcome = evaluate(check(column=VAL_LOSS, window=[1, 2]), run)
    assert outcome.answer == "inconclusive"
    assert "not measured" in outcome.reason


# -- what a setting decides ------------------------------------------------------------


@pytest.mark.parametrize(
    ("clip", "norm", "answer", "reason"),
    [
        (0.5, 0.5, "passed", "true by construction (clip 0.5)"),
        (0.5, 0.7, "failed", ""),
        (1.0, 0.7, "failed", "by its setting (clip 1.0), not its behaviour"),
        (1.0, 0.3, "passed", ""),
        (None, 0.7, "failed", "by its setting (clip null), not its behaviour"),
    ],
)
def test_what_the_answer_owes_to_the_setting_is_said(clip, norm, answer, reason):
    by_clip = check(
        column=GRAD_NORM_POSTCLIP, limit=0.5, by_setting="clip", window=[0, None]
    )
    outcome = evaluate(by_clip, history([0], norm=[norm], clip=clip))
    assert (outcome.answer, outcome.reason) == (answer, reason)


def test_a_setting_that_the_manifest_does_not_tell_is_not_null():
    by_clip = check(by_setting="clip", window=[0, 0])
    outcome = evaluate(by_clip, history([0], clip=None, unknown=("clip",)))
    assert outcome.reason == "clip is not known of this run"


# -- the distance to a baseline --------------------------------------------------------


GAP = {"kind": "ema_gap_to_baseline", "window": [0, 99], "limit": 0.05}


def test_the_gap_is_that_of_the_averages():
    rng = np.random.default_rng(0)
    one, other = rng.random(100), rng.random(100)
    outcome = evaluate(check(**GAP), history(one), history(other, name="b"))
    gap = np.abs(ema(one) - ema(other))
    assert (outcome.observed, outcome.step) == (gap.max(), gap.argmax())
    later = evaluate(
        check(**GAP | {"window": [40, 99]}), history(one), history(other, name="b")
    )
    assert later.observed == gap[40:].max()
    assert later.step == 40 + gap[40:].argmax()


def test_a_constant_offset_is_found_whatever_its_sign():
    base = history(np.ones(100), name="b")
    for offset, answer in ((0.04, "passed"), (-0.04, "passed"), (-0.06, "failed")):
        run = history(np.ones(100) + offset)
        assert evaluate(check(**GAP), run, base).answer == answer


def test_a_longer_run_is_compared_up_to_the_window_only():
    loss = np.ones(300)
    loss[100:] = math.nan
    assert (
        evaluate(check(**GAP), history(loss), history(np.ones(100), name="b")).answer
        == "passed"
    )


@pytest.mark.parametrize("baseline", [None, history(np.ones(99), name="b")])
def test_without_a_baseline_that_reaches_as_far_nothing_is_proved(baseline):
    outcome = evaluate(check(**GAP), history(np.ones(100)), baseline)
    assert (outcome.answer, outcome.reason) == (
        "inconclusive",
        "no baseline that reaches step 99",
    )


def test_no_run_is_compared_with_itself():
    run = history(np.ones(100))
    outcome = evaluate(check(**GAP), run, history(np.ones(100)))
    assert (outcome.answer, outcome.reason) == (
        "inconclusive",
        "the run is the baseline itself",
    )


def test_an_average_needs_every_step():
    val = [1.0, *[math.nan] * 99]
    run = history(np.ones(100), val=val)
    outcome = evaluate(
        check(**GAP | {"column": VAL_LOSS}), run, history(np.ones(100), name="b")
    )
    assert (outcome.answer, outcome.reason) == (
        "inconclusive",
        "val/loss was not measured at every step",
    )
