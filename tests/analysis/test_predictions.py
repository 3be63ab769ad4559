"""Predictions beside what was measured, on synthetic records."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from analysis.blocks import Columns
from analysis.ema import ema
from analysis.facts import RunFacts
from analysis.history import RunHistory
from analysis.predictions import QUANTITIES, RISE_STEPS, Scene, judge
from minigpt.records import (
    GRAD_NORM_POSTCLIP,
    GRAD_NORM_PRECLIP,
    TRAIN_LOSS,
    InputError,
    RecordLayout,
)

STEPS, K = 300, 150
PLAIN = {
    "id": "a-claim",
    "claim": "It shows.",
    "quantity": "loss_z_at_step",
    "low": 6.0,
    "high": None,
    "unit": "robust z",
}


def history(loss=None, norm=None, name="run"):
    """A record: by default a loss that alternates 1.9, 2.1 and norms of 2."""
    loss = 2 + 0.1 * (-1.0) ** np.arange(STEPS) if loss is None else np.asarray(loss)
    norm = np.full(len(loss), 2.0) if norm is None else np.asarray(norm)
    flat = {
        TRAIN_LOSS: loss,
        GRAD_NORM_PRECLIP: norm,
        GRAD_NORM_POSTCLIP: np.minimum(norm, 1.0),
    }
    steps = np.arange(len(loss))
    columns = Columns(RecordLayout(tuple(flat)), steps, flat, {}, {})
    return RunHistory(name, Path(name), steps, columns, RunFacts("finished"))


def with_value(values, step, value):
    values = np.array(values)
    values[step] = value
    return values


LOSS, NORM = history().scalar(TRAIN_LOSS), history().scalar(GRAD_NORM_PRECLIP)


def scene(run=None, twin=None, reference=None, step=K):
    parts = (part or history() for part in (run, twin, reference))
    return Scene(*parts, step)


def measured(quantity, scene):
    plain = PLAIN | {"quantity": quantity, "low": None, "high": 1e300}
    return judge(plain, scene).measured


# -- quantities ------------------------------------------------------------------------


def test_the_z_of_the_loss_is_that_of_the_100_steps_before():
    loss = with_value(LOSS, K, 2.0 + 0.1 * 1.4826 * 7)
    loss[: K - 100] = -5e6  # what lies before the window does not count
    assert measured("loss_z_at_step", scene(history(loss))) == pytest.approx(7)


def test_the_z_of_the_loss_hardly_minds_an_outlier_in_its_window():
    loss = with_value(LOSS, K, 2.0 + 0.1 * 1.4826 * 7)
    loss[K - 3] = 1e6
    found = measured("loss_z_at_step", scene(history(loss)))
    assert found == pytest.approx(7, abs=0.7)


def test_the_norms_ratio_is_to_the_median_of_the_50_steps_before():
    norm = with_value(NORM, K, 100.0)
    norm[: K - 50] = 1e9
    norm[K - 10 : K] = 70
    assert measured("preclip_ratio_at_step", scene(history(norm=norm))) == 50


def test_the_clipped_norm_is_that_of_the_step():
    run = history(norm=with_value(NORM, K, 0.25))
    assert measured("postclip_at_step", scene(run)) == 0.25
    assert measured("postclip_at_step", scene()) == 1.0


def test_the_excess_is_over_the_twin_and_against_injection_a():
    run = history(with_value(LOSS, K, 5.0))
    reference = history(with_value(LOSS, K, 4.0))
    found = measured("loss_excess_vs_scale", scene(run, reference=reference))
    assert found == pytest.approx(1.0)


def test_the_norms_are_compared_by_their_ratios():
    run = history(norm=with_value(NORM, K, 6.0))
    reference = history(norm=with_value(NORM, K, 60.0))
    found = measured("preclip_ratio_vs_scale", scene(run, reference=reference))
    assert found == pytest.approx(0.1)


def test_the_rise_is_the_largest_gap_of_the_averages_within_30_steps():
    loss = np.array(LOSS)
    loss[K + 10 : K + 200] += 1.0
    gap = ema(loss) - ema(LOSS)
    found = measured("ema_rise_30", scene(history(loss)))
    assert found == gap[K + RISE_STEPS]
    assert found == pytest.approx(1 - (49 / 51) ** 21, rel=1e-2)


def test_a_rise_before_k_or_at_k_is_no_rise_after_it():
    late = np.array(LOSS)
    late[K + RISE_STEPS + 1 :] += 5
    assert measured("ema_rise_30", scene(history(late))) == 0


def test_recovery_counts_from_k_to_the_first_step_back():
    loss = np.array(LOSS)
    loss[K : K + 5] += 1.0
    gap = np.abs(ema(loss) - ema(LOSS))
    back = next(step for step in range(K + 5, STEPS) if gap[step] <= 0.05)
    assert measured("recovery_steps", scene(history(loss))) == back - K
    assert 20 < back - K < 60


def test_a_run_that_stays_away_never_recovers():
    loss = np.array(LOSS)
    loss[K:] += 1.0
    assert measured("recovery_steps", scene(history(loss))) == math.inf


def test_a_run_that_ends_in_nan_never_recovers():
    loss = np.array(LOSS)
    loss[K + 1 :] = math.nan
    verdict = judge(
        PLAIN | {"quantity": "recovery_steps", "low": 20.0, "high": 40.0},
        scene(history(loss)),
    )
    assert (verdict.measured, verdict.confirmed) == (math.inf, False)


def test_a_fault_that_left_no_mark_has_nothing_to_recover_from():
    verdict = judge(PLAIN | {"quantity": "recovery_steps"}, scene())
    assert (verdict.measured, verdict.confirmed) == (None, False)
    assert "no spike to recover from" in verdict.note


@pytest.mark.parametrize(
    ("quantity", "run"),
    [
        ("loss_z_at_step", history(np.full(STEPS, 2.0))),
        ("preclip_ratio_at_step", history(norm=np.zeros(STEPS))),
        ("preclip_ratio_vs_scale", history(norm=np.zeros(STEPS))),
    ],
)
def test_what_cannot_be_divided_by_is_said_and_not_confirmed(quantity, run):
    verdict = judge(PLAIN | {"quantity": quantity}, scene(run, run, run))
    assert (verdict.measured, verdict.confirmed) == (None, False)
    assert verdict.note


@pytest.mark.parametrize("quantity", ["loss_z_at_step", "preclip_ratio_at_step"])
def test_a_fault_at_step_0_has_nothing_before_it(quantity):
    verdict = judge(PLAIN | {"quantity": quantity}, scene(step=0))
    assert verdict.measured is None
    assert "before K" in verdict.note


# -- judging ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "confirmed", "expected"),
    [
        (1.0, None, True, ">= 1 norm"),
        (1.01, None, False, ">= 1.01 norm"),
        (None, 1.0, True, "<= 1 norm"),
        (None, 0.99, False, "<= 0.99 norm"),
        (0.99, 1.01, True, "0.99 to 1.01 norm"),
        (1.01, 2, False, "1.01 to 2 norm"),
    ],
)
def test_the_range_includes_its_ends(low, high, confirmed, expected):
    plain = PLAIN | {"quantity": "postclip_at_step", "unit": "norm"}
    verdict = judge(plain | {"low": low, "high": high}, scene())
    assert (verdict.measured, verdict.confirmed) == (1.0, confirmed)
    assert (verdict.expected, verdict.id, verdict.claim) == (
        expected,
        "a-claim",
        "It shows.",
    )


def test_nan_confirms_nothing():
    run = history(with_value(LOSS, K, math.nan))
    for bounds in ({"low": 6.0, "high": None}, {"low": None, "high": 6.0}):
        verdict = judge(PLAIN | bounds, scene(run))
        assert math.isnan(verdict.measured)
        assert not verdict.confirmed


@pytest.mark.parametrize("which", ["run", "twin", "reference"])
def test_a_record_that_ends_before_the_claim_does_is_refused(which):
    short = history(np.ones(K + RISE_STEPS), name="short")
    with pytest.raises(
        InputError, match=r"run short: expected a record beyond step 180, found 180"
    ):
        judge(PLAIN, scene(**{which: short}))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"quantity": "loss"},
            "quantity: expected one of loss_z_at_step, .*got 'loss'",
        ),
        ({"quantity": 5}, "quantity: expected text, got 5"),
        ({"low": "6"}, "low: expected a number, got '6'"),
        ({"high": True}, "high: expected a number, got True"),
        ({"low": None}, "expected low <= high, or one of them"),
        ({"low": 7.0, "high": 6.0}, "expected low <= high"),
        ({"more": 1}, "prediction: expected the keys id, claim"),
    ],
)
def test_what_is_no_prediction_is_refused_in_one_line(change, expected):
    with pytest.raises(InputError, match=expected) as caught:
        judge(PLAIN | change, scene())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("plain", [None, "x", [PLAIN], {}])
def test_something_else_is_refused_too(plain):
    with pytest.raises(InputError, match="prediction: expected the keys"):
        judge(plain, scene())


def test_every_quantity_can_be_measured():
    loss = np.array(LOSS)
    loss[K : K + 5] += 1.0
    run = history(loss, with_value(NORM, K, 9.0))
    for quantity in QUANTITIES:
        assert measured(quantity, scene(run)) is not None
