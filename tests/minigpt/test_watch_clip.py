"""Whether all gradients were scaled by one factor, and by which."""

from __future__ import annotations

import math

import numpy as np
import pytest

from minigpt.watch import common_factor

NORMS = np.array([3.0, 4.0, 0.0, 1e-12])


@pytest.mark.parametrize("factor", [0.5, 1e-4, 50.0])
def test_a_common_factor_is_found(factor):
    assert common_factor(NORMS, factor * NORMS) == pytest.approx(factor, rel=1e-12)


def test_rounding_is_no_clip():
    assert common_factor(NORMS, NORMS * (1 + 3e-6)) == 1.0
    assert common_factor(NORMS, NORMS * np.array([1 + 3e-6, 1, 1, 1 - 3e-6])) == 1.0


@pytest.mark.parametrize(
    "after",
    [
        NORMS * np.array([0.5, 0.6, 1.0, 0.5]),
        NORMS * np.array([1.0, 0.999, 1.0, 1.0]),
        NORMS + np.array([0, 0, 1e-3, 0]),
        NORMS * np.array([1.0, 1.0, 1.0, np.inf]),
        NORMS * np.nan,
    ],
)
def test_tensors_that_were_treated_differently_have_none(after):
    assert math.isnan(common_factor(NORMS, after))


def test_what_was_not_finite_before_has_none():
    before = np.array([np.inf, 1.0])
    assert math.isnan(common_factor(before, before))


def test_no_gradient_at_all_was_scaled_by_one():
    assert common_factor(np.zeros(2), np.zeros(2)) == 1.0
