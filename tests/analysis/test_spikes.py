"""The step detector and the shipping rule, against slow references."""

import json
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.ema import ema
from analysis.marks import find_marks
from analysis.rule import RuleParameters
from analysis.spikes import (
    Mark,
    Onsets,
    ShippingRule,
    StepDetector,
    ship,
    stride_at,
)
from minigpt.records import InputError

RULE = RuleParameters()


def healthy(count, seed=0):
    """Losses and norms of a run with a warm-up, a descent and heavy-tailed norms."""
    rng = np.random.default_rng(seed)
    step = np.arange(count)
    level = 1.4 + 4.8 * np.exp(-np.maximum(step - 20, 0) / 60)
    loss = level + 0.14 * rng.standard_normal(count)
    norm = np.exp(0.4 + 0.16 * rng.standard_normal(count))
    return loss, norm


# -- the detector against numpy over the whole history -----------------------------


def reference(losses, norms, rule=RULE):
    """What ``StepDetector`` does, said in the most obvious way."""
    losses = np.asarray(losses, float)
    logs = np.array([math.log(max(norm, 1e-30)) for norm in norms])
    marked, marks = np.zeros(len(losses), bool), []
    for step in range(len(losses)):
        first = max(0, step - rule.window)
        keep = [t for t in range(first, step) if not marked[t]]
        zs = []
        for values, floor, relative in (
            (losses, rule.loss_floor, rule.loss_relative_floor),
            (logs, rule.norm_floor, 0.0),
        ):
            history = values[keep]
            z = None
            if np.isfinite(values[step]) and len(history) >= rule.minimum:
                median = np.median(history)
                mad = np.median(np.abs(history - median))
                sigma = max(1.4826 * mad, floor, relative * abs(median))
                z = max(0.0, (values[step] - median) / sigma)
            zs.append(z)
        reasons = []
        if not np.isfinite(losses[step]):
            reasons.append("nonfinite_loss")
        if zs[0] is not None and zs[0] > rule.loss_z:
            reasons.append("loss")
        if not np.isfinite(norms[step]):
            reasons.append("nonfinite_norm")
        if zs[1] is not None and zs[1] > rule.norm_z:
            reasons.append("norm")
        if reasons:
            marked[step] = True
            marks.append(Mark(step, tuple(reasons), *zs))
    return marks


@pytest.mark.parametrize("seed", range(4))
def test_the_stream_equals_the_reference(seed):
    rng = np.random.default_rng(seed)
    loss, norm = healthy(500, seed)
    for _ in range(25):
        start = rng.integers(0, 495)
        loss[start : start + rng.integers(1, 6)] += rng.choice([0.5, 2.0, np.nan])
        norm[rng.integers(0, 500)] *= rng.choice([4.0, 50.0, np.inf, 0.0])
    loss[300:380] += 3  # a long event empties the window of unmarked steps
    expected = reference(loss, norm)
    assert len(expected) > 40
    assert find_marks(loss, norm) == expected  # bit for bit, z included


def test_rounded_values_equal_the_reference_too():
    loss, norm = healthy(400)
    loss, norm = np.round(loss, 1), np.round(norm, 1)
    loss[200] = 9.9
    assert find_marks(loss, norm) == reference(loss, norm)


# -- what is and what is not marked ------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_health_is_not_marked(seed):
    assert find_marks(*healthy(2000, seed)) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("step", [0, 10, 200])
def test_non_finite_always_counts(bad, step):
    loss, norm = healthy(300)
    loss[step] = bad
    [mark] = find_marks(loss, norm)
    assert (mark.step, mark.reasons, mark.loss_z) == (step, ("nonfinite_loss",), None)
    loss, norm = healthy(300)
    norm[step] = bad
    [mark] = find_marks(loss, norm)
    assert (mark.step, mark.reasons) == (step, ("nonfinite_norm",))


def test_only_upwards():
    loss, norm = healthy(300)
    loss[200], norm[200] = 0.0, 0.0
    assert find_marks(loss, norm) == []


def test_each_signal_marks_alone():
    loss, norm = healthy(600)
    loss[500] += 2.0
    norm[550] *= 30
    marks = find_marks(loss, norm)
    assert [(mark.step, mark.reasons) for mark in marks] == [
        (500, ("loss",)),
        (550, ("norm",)),
    ]
    assert marks[0].loss_z > RULE.loss_z
    assert marks[0].norm_z < RULE.norm_z


def test_nothing_finite_is_marked_before_there_is_a_baseline():
    loss, norm = healthy(60)
    norm[:] = 1.0
    loss[:] = 2.0
    loss[RULE.minimum - 1] = 100.0
    assert find_marks(loss, norm) == []
    loss[RULE.minimum - 1] = 2.0
    loss[RULE.minimum] = 100.0
    assert [mark.step for mark in find_marks(loss, norm)] == [RULE.minimum]


@pytest.mark.parametrize("digits", [1, 2, 4])
def test_the_last_digit_of_a_constant_is_no_event(digits):
    unit = 10.0**-digits
    loss, norm = np.full(300, 2.3), np.full(300, 1.1)
    loss[200], norm[250] = 2.3 + unit, 1.1 + unit
    assert find_marks(loss, norm) == []
    loss[200] = 2.3 + 2
    assert [mark.step for mark in find_marks(loss, norm)] == [200]


def test_a_spike_does_not_hide_the_next_one():
    loss, norm = healthy(400)
    for step in (200, 210, 220, 299):
        norm[step] = 47.2
    marks = find_marks(loss, norm)
    assert [mark.step for mark in marks] == [200, 210, 220, 299]
    assert min(mark.norm_z for mark in marks) > 0.9 * max(m.norm_z for m in marks)


def test_a_level_that_stays_becomes_the_baseline():
    loss, norm = np.full(600, 2.0), np.ones(600)
    loss[200:] = 6.0
    loss[500] = 9.0
    steps = [mark.step for mark in find_marks(loss, norm)]
    assert steps == [*range(200, 251), 500]


def test_a_run_without_norms_is_judged_by_its_loss():
    loss, _ = healthy(300)
    loss[200] += 3
    [mark] = find_marks(loss, None)
    assert (mark.step, mark.norm_z) == (200, None)


def test_windows_count_calls_so_that_a_sparse_log_has_a_baseline_too():
    loss, norm = healthy(300)
    loss[200] += 3
    steps = np.arange(300) * 10
    assert [mark.step for mark in find_marks(loss, norm, steps)] == [2000]


def test_steps_must_grow():
    detector = StepDetector()
    detector.update(3, 1.0, 1.0)
    with pytest.raises(ValueError, match="expected more than 3, found 3"):
        detector.update(3, 1.0, 1.0)


def test_a_step_costs_little():
    loss, norm = healthy(5000)
    rows = list(zip(range(5000), loss.tolist(), norm.tolist(), strict=True))
    times = []
    for _ in range(3):
        detector = StepDetector()
        start = time.perf_counter()
        for row in rows:
            detector.update(*row)
        times.append((time.perf_counter() - start) / len(rows))
    assert min(times) < 30e-6


# -- the parameters ----------------------------------------------------------------


def test_parameters_survive_json():
    rule = RuleParameters(version=2, loss_z=8.0, lead=3)
    assert RuleParameters.from_json(json.loads(json.dumps(rule.to_json()))) == rule


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"surplus": 1}, "rule: expected"),
        ({"window": "100"}, "rule window: expected a number, found '100'"),
        ({"window": 100.5}, "rule window: expected a number"),
        ({"window": True}, "rule window: expected a number"),
        ({"window": 49}, "rule window: expected at least the minimum of 50, found 49"),
        ({"lead": 0}, "rule lead: expected at least 1, found 0"),
        ({"stride": 0}, "rule stride: expected at least 1"),
        ({"loss_z": float("nan")}, "rule loss_z: expected"),
        ({"lag": -1}, "rule lag: expected"),
    ],
)
def test_odd_parameters_are_refused(change, complaint):
    with pytest.raises(InputError, match=complaint):
        RuleParameters.from_json(RULE.to_json() | change)


def test_parameters_from_something_else_are_refused():
    with pytest.raises(InputError, match=r"found \[1\]"):
        RuleParameters.from_json([1])


# -- the shipping rule -------------------------------------------------------------


def slow_ship(loss, norm, occasional):
    """The rule as a definition over the whole run."""
    marked = [mark.step for mark in find_marks(loss, norm)]
    onsets = [
        step for step in marked if not any(step - 50 <= one < step for one in marked)
    ]
    shipped = []
    for step in range(len(loss)):
        stride = 10
        while stride * 200 <= step:  # 20 from step 2000 on, 40 from 4000 on
            stride *= 2
        near = any(onset - 10 <= step <= onset + 50 for onset in onsets)
        last = step == len(loss) - 1
        if step % stride == 0 or occasional[step] or near or last:
            shipped.append(step)
    return shipped


events = st.lists(
    st.tuples(
        st.integers(0, 399),
        st.integers(1, 80),
        st.sampled_from([2.0, 6.0, np.nan, np.inf]),
    ),
    max_size=5,
)


def run_with(drawn, seed, count=400):
    loss, norm = healthy(count, seed)
    for start, length, lift in drawn:
        loss[start : start + length] += lift
    occasional = np.zeros(count, bool)
    occasional[7::97] = True
    return loss, norm, occasional


@settings(max_examples=40, deadline=None)
@given(drawn=events, seed=st.integers(0, 9))
def test_shipping_equals_its_definition(drawn, seed):
    run = run_with(drawn, seed)
    assert ship(*run).tolist() == slow_ship(*run)


@settings(max_examples=40, deadline=None)
@given(drawn=events, seed=st.integers(0, 9), step=st.integers(0, 389))
def test_a_step_is_decided_by_the_ten_that_follow_it(drawn, seed, step):
    loss, norm, occasional = run_with(drawn, seed)
    whole = ship(loss, norm, occasional)
    prefix = slice(0, step + 11)
    part = ship(loss[prefix], norm[prefix], occasional[prefix])
    assert (step in part) == (step in whole)
    assert part[part <= step].tolist() == whole[whole <= step].tolist()


def test_decisions_arrive_in_order_and_ten_steps_late():
    loss, norm, occasional = run_with([(200, 3, 6.0)], 0)
    rule, seen = ShippingRule(), []
    for step in range(400):
        now = rule.push(step, loss[step], norm[step], occasional[step])
        assert now == [] or now == [step - 10]
        seen += now
    assert seen == sorted(seen)
    assert 190 in seen
    assert 189 not in seen
    assert rule.finish()[-1] == 399
    assert rule.finish() == []


def test_a_step_inside_an_event_window_ships_for_no_other_reason():
    loss, norm, occasional = run_with([(205, 1, 6.0)], 0)
    shipped = set(ship(loss, norm, occasional).tolist())
    assert set(range(195, 256)) <= shipped
    assert {194, 256}.isdisjoint(shipped)


@pytest.mark.parametrize(("distance", "onsets"), [(50, [60]), (51, [60, 111])])
def test_an_onset_has_fifty_quiet_steps_before_it(distance, onsets):
    first, second = Onsets(), 60 + distance
    marks = [Mark(step, ("loss",), 9.0, None) for step in (60, second)]
    assert [mark.step for mark in marks if first.is_onset(mark)] == onsets


def test_a_run_that_stays_nan_does_not_ship_everything():
    loss, norm, occasional = run_with([], 0, 2000)
    loss[205:] = np.nan
    shipped = ship(loss, norm, occasional)
    assert set(range(195, 256)) <= set(shipped.tolist())
    assert len(shipped) < 300


def test_the_stride_doubles_with_the_step():
    steps = [0, 1999, 2000, 3999, 4000, 7999, 8000, 999_999]
    assert [stride_at(step) for step in steps] == [10, 10, 20, 20, 40, 40, 80, 5120]
    points = sum(step % stride_at(step) == 0 for step in range(1_000_000))
    assert 1000 <= points <= 1200


def test_short_runs():
    none = np.zeros(0)
    assert ship(none, none, none).tolist() == []
    assert ship(none, None, none).dtype == np.int64
    three = np.ones(3)
    assert ship(three, None, np.zeros(3)).tolist() == [0, 2]


def test_steps_are_pushed_without_a_gap():
    rule = ShippingRule()
    rule.push(0, 1.0, 1.0, False)
    with pytest.raises(ValueError, match="step: expected 1, found 2"):
        rule.push(2, 1.0, 1.0, False)


# -- the EMA -----------------------------------------------------------------------


def slow_ema(loss, span):
    """The weighted mean that a bias-corrected EMA is."""
    alpha = 2 / (span + 1)
    result = []
    for step in range(len(loss)):
        weights = (1 - alpha) ** np.arange(step, -1, -1)
        result.append((weights * loss[: step + 1]).sum() / weights.sum())
    return np.array(result)


@pytest.mark.parametrize("span", [1, 2, 50])
def test_ema_is_the_weighted_mean(span):
    loss = np.random.default_rng(0).standard_normal(300)
    np.testing.assert_allclose(ema(loss, span), slow_ema(loss, span), rtol=1e-10)


def test_ema_starts_at_the_loss_and_keeps_a_constant():
    np.testing.assert_allclose(ema(np.full(200, 2.5)), 2.5, rtol=1e-14)
    assert ema(np.array([])).shape == (0,)


def test_ema_stays_nan_after_a_nan():
    averages = ema(np.array([1.0, np.nan, 1.0, 1.0]))
    assert np.isnan(averages).tolist() == [False, True, True, True]


def test_ema_refuses_a_span_below_one():
    with pytest.raises(ValueError, match="span: expected at least 1 step, found 0"):
        ema(np.ones(3), 0)
