"""All marks of a run at once, against the detector fed step by step."""

import numpy as np
import pytest

from analysis.marks import above_median, find_marks
from analysis.rule import RuleParameters
from analysis.spikes import StepDetector


def streamed(loss, norm, rule):
    detector = StepDetector(rule)
    norms = [None] * len(loss) if norm is None else norm.tolist()
    rows = zip(range(len(loss)), loss.tolist(), norms, strict=True)
    marks = (detector.update(*row) for row in rows)
    return [mark for mark in marks if mark is not None]


def noisy(count, seed, events):
    """A falling loss and heavy-tailed norms with events of many kinds."""
    rng = np.random.default_rng(seed)
    loss = 1.4 + 4 * np.exp(-np.arange(count) / 400) + 0.1 * rng.standard_t(4, count)
    norm = np.exp(0.3 * rng.standard_t(4, count))
    for _ in range(events):
        start, length = rng.integers(0, count), rng.integers(1, 9)
        loss[start : start + length] += rng.choice([0.4, 1.0, 3.0, np.nan, np.inf])
        norm[start : start + length] *= rng.choice([3.0, 30.0, np.nan, np.inf, 0.0])
    return loss, norm


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "rule",
    [RuleParameters(), RuleParameters(window=31, minimum=7, loss_z=3.0, norm_z=3.0)],
    ids=["default", "odd window, low thresholds"],
)
def test_they_are_those_of_the_stream(seed, rule):
    loss, norm = noisy(3000, seed, events=8)
    expected = streamed(loss, norm, rule)
    assert len(expected) >= 8
    assert find_marks(loss, norm, None, rule) == expected
    assert find_marks(loss, None, None, rule) == streamed(loss, None, rule)


def test_levels_that_shift_and_stay_are_those_of_the_stream():
    loss, norm = noisy(1500, 3, events=0)
    loss[400:] += 5
    norm[700:] *= 90
    loss[1200:] = np.nan
    rule = RuleParameters()
    assert find_marks(loss, norm) == streamed(loss, norm, rule)


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
def test_short_runs_too(count):
    loss, norm = noisy(count, 1, events=0)
    if count:
        loss[-1] += 50
        norm[0] = np.inf
    assert find_marks(loss, norm) == streamed(loss, norm, RuleParameters())


def test_an_event_at_the_edge_of_two_chunks_is_found(monkeypatch):
    monkeypatch.setattr("analysis.marks._CHUNK", 100)
    loss, norm = noisy(1000, 2, events=0)
    for row in range(195, 206):
        spiked = loss.copy()
        spiked[row + 300] += 9
        assert find_marks(spiked, norm) == streamed(spiked, norm, RuleParameters())


def test_numbers_of_steps_are_kept():
    loss, norm = noisy(400, 1, events=0)
    loss[300] += 50
    (mark,) = find_marks(loss, norm, range(1000, 1800, 2))
    assert mark.step == 1600


@pytest.mark.parametrize("window", [1, 2, 7, 100])
@pytest.mark.parametrize("chunk", [50, 20_000])
def test_the_height_above_the_median_is_that_of_the_plain_formula(
    window, chunk, monkeypatch
):
    monkeypatch.setattr("analysis.marks._CHUNK", chunk)
    values, _ = noisy(400, 9, events=2)
    above = above_median(values, window)
    for row, height in enumerate(above):
        before = values[max(0, row - window) : row]
        whole = len(before) == window and np.isfinite([*before, values[row]]).all()
        expected = values[row] - np.median(before) if whole else np.nan
        np.testing.assert_equal(height, expected)
