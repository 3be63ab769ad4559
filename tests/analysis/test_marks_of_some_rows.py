"""Marks where loss and norm were not recorded at every step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.marks import find_marks
from analysis.rule import RuleParameters
from analysis.spikes import StepDetector

RULE = RuleParameters(window=20, minimum=10)


def slowly(losses, norms, loss_rows, norm_rows):
    """The detector itself, step after step."""
    detector, marks = StepDetector(RULE), []
    for step in range(len(losses)):
        mark = detector.update(
            step,
            float(losses[step]) if loss_rows[step] else None,
            float(norms[step]) if norm_rows[step] else None,
        )
        marks += [mark] if mark else []
    return marks


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    loss_part=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    norm_part=st.sampled_from([0.0, 0.1, 1.0]),
    spikes=st.lists(st.integers(0, 299), max_size=6),
    odd=st.lists(st.integers(0, 299), max_size=3),
)
def test_they_are_those_of_the_detector(seed, loss_part, norm_part, spikes, odd):
    rng = np.random.default_rng(seed)
    losses = 2 + 0.1 * rng.standard_normal(300)
    norms = np.exp(0.2 * rng.standard_normal(300))
    losses[spikes], norms[spikes[::2]] = 9.0, 80.0
    losses[odd], norms[odd[:1]] = np.nan, np.inf
    loss_rows, norm_rows = rng.random(300) < loss_part, rng.random(300) < norm_part
    found = find_marks(losses, norms, None, RULE, loss_rows, norm_rows)
    assert found == slowly(losses, norms, loss_rows, norm_rows)


def test_a_loss_of_every_tenth_step_is_judged_by_its_own_past():
    rng = np.random.default_rng(0)
    rows = np.arange(2000) % 10 == 0
    losses = np.where(rows, 2 + 0.05 * rng.standard_normal(2000), np.nan)
    norms = np.exp(0.1 * rng.standard_normal(2000))
    losses[1500], norms[1303] = 4.0, 60.0
    found = find_marks(losses, norms, None, RULE, rows, np.ones(2000, bool))
    assert [(mark.step, mark.reasons) for mark in found] == [
        (1303, ("norm",)),
        (1500, ("loss",)),
    ]


@pytest.mark.parametrize("rows", [0, 5])
def test_nothing_recorded_marks_nothing(rows):
    nowhere = np.zeros(rows, bool)
    values = np.full(rows, np.nan)
    assert find_marks(values, values, None, RULE, nowhere, nowhere) == []


def test_a_detector_without_a_loss_keeps_its_baseline():
    with_gaps, without = StepDetector(RULE), StepDetector(RULE)
    rng = np.random.default_rng(0)
    for step in range(200):
        value = 9.0 if step == 150 else 2 + 0.1 * rng.standard_normal()
        mark = without.update(step, value, None)
        found = with_gaps.update(3 * step, value, None)
        assert (found and found.loss_z) == (mark and mark.loss_z)
        for gap in (1, 2):
            assert with_gaps.update(3 * step + gap, None, None) is None
