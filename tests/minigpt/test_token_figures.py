"""Percentile, histogram and class losses of the token losses of a step."""

import math

import numpy as np
import pytest

from minigpt import records as col
from minigpt.batches import collate
from minigpt.records import HISTOGRAM_EDGES
from minigpt.step_columns import (
    class_losses,
    loss_histogram,
    percentile_99,
)

NAN, INF = math.nan, math.inf


def floats(*values):
    return np.array(values, dtype=np.float32)


# -- percentile --------------------------------------------------------------------


def slow_percentile(values):
    """The smallest value that at least 99 % of the values do not exceed."""
    ordered = sorted(values, key=lambda v: (math.isnan(v), v))
    for place, value in enumerate(ordered, start=1):
        if place >= 0.99 * len(ordered):
            return value
    raise AssertionError


@pytest.mark.parametrize("size", [1, 2, 50, 99, 100, 101, 199, 200, 201, 1000])
@pytest.mark.parametrize("odd", [(), (INF,), (NAN,), (NAN, NAN, INF)])
def test_p99_agrees_with_the_definition(size, odd):
    values = np.random.default_rng(size).exponential(size=size).astype(np.float32)
    values[: len(odd)] = odd[:size]
    found, expected = percentile_99(values), slow_percentile(values.tolist())
    assert found == expected or (math.isnan(found) and math.isnan(expected))


def test_one_nan_is_the_p99_of_fewer_than_a_hundred_values():
    assert math.isnan(percentile_99(floats(NAN, *range(98))))
    assert percentile_99(floats(NAN, *range(99))) == 98.0


# -- histogram ---------------------------------------------------------------------


def slow_histogram(values):
    counts = [0] * 32
    for value in values:
        lower = [0.5 * b <= value < 0.5 * b + 0.5 for b in range(31)]
        counts[lower.index(True) if True in lower else 0 if value < 0 else 31] += 1
    return counts


def test_32_bins_of_half_a_nat():
    assert HISTOGRAM_EDGES.tolist() == [0.5 * i for i in range(1, 32)]


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).uniform(-1, 20, 500),
        HISTOGRAM_EDGES,
        np.nextafter(HISTOGRAM_EDGES, np.float32(0)),
        [NAN, INF, -INF, 0.0, -0.0, 15.5, 1e30],
        [],
    ],
)
def test_histogram_agrees_with_the_definition(values):
    values = floats(*values)
    found = loss_histogram(values)
    assert (found.dtype, found.shape) == (np.uint16, (32,))
    assert found.tolist() == slow_histogram(values.tolist())
    assert found.sum() == len(values)


# -- class losses ------------------------------------------------------------------


def batch_of(lengths, regular):
    rows = [np.arange(3, 3 + length, dtype=np.uint16) for length in lengths]
    return collate(7, rows, np.array(regular))


def slow_class_losses(losses, lengths, regular):
    found, at = {True: [], False: []}, 0
    for length, flag in zip(lengths, regular, strict=True):
        found[flag] += losses[at : at + length - 1].tolist()
        at += length - 1
    assert at == len(losses)
    names = {True: col.LOSS_REGULAR, False: col.LOSS_IRREGULAR}
    return {names[k]: math.fsum(v) / len(v) for k, v in found.items() if v}


@pytest.mark.parametrize(
    "regular",
    [[True, False, True, False], [True] * 4, [False] * 4, [False, True, True, True]],
)
def test_class_losses_agree_with_a_loop(regular):
    lengths = [4, 9, 2, 6]
    losses = np.random.default_rng(1).exponential(3.0, 17).astype(np.float32)
    found = class_losses(losses, batch_of(lengths, regular))
    # At most nine float32 numbers a row are added.
    assert found == pytest.approx(slow_class_losses(losses, lengths, regular), rel=5e-7)


@pytest.mark.parametrize("poison", [NAN, INF])
def test_a_class_loss_that_is_not_finite_leaves_the_other_class_alone(poison):
    losses = floats(1.0, 2.0, poison, 4.0)
    found = class_losses(losses, batch_of([3, 3], [True, False]))
    assert found[col.LOSS_REGULAR] == 1.5
    assert not math.isfinite(found[col.LOSS_IRREGULAR])


def test_losses_near_the_end_of_float32_make_no_warning():
    found = class_losses(floats(3e38, 3e38), batch_of([3], [True]))
    assert found[col.LOSS_REGULAR] > 1e38
