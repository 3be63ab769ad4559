"""Thinning against a loop over the rows: no extreme is lost, and windows are exact."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.dashboard.grid import LAG, LEAD, MAX_WINDOWS, WIDTH, make_grid

VALUES = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -1.0, 1.0, 2.5, 1e300, 5e-324])


def slow(grid, values):
    """(low, high, first value that is not finite) of each cell, row by row."""
    cells = []
    for first, last in zip(grid.first, grid.last, strict=True):
        part = [float(values[row]) for row in range(first, last + 1)]
        finite = [value for value in part if math.isfinite(value)]
        odd = [value for value in part if not math.isfinite(value)]
        low = min(finite, default=math.nan)
        high = max(finite, default=math.nan)
        cells.append((low, high, odd[0] if odd else None))
    return cells


def same(one, other):
    return one == other or (one != one and other != other)


def assert_reduced(grid, values):
    reduced, expected = grid.reduce(values), slow(grid, values)
    odd = dict(zip(reduced.odd.tolist(), reduced.odd_values.tolist(), strict=True))
    assert list(odd) == [i for i, cell in enumerate(expected) if cell[2] is not None]
    for index, (low, high, first_odd) in enumerate(expected):
        start, end = float(reduced.start[index]), float(reduced.end[index])
        if first_odd is not None:
            assert same(odd[index], first_odd)
        if grid.exact:  # the value itself, whatever it is
            assert same(start, values[index])
            assert same(end, values[index])
        else:
            assert same(np.fmin(start, end), low)
            assert same(np.fmax(start, end), high)


@settings(max_examples=200, deadline=None)
@given(st.lists(VALUES, max_size=40), st.integers(0, 30), st.data())
def test_every_cell_keeps_its_extremes(values, cells, data):
    rows = len(values)
    edges = data.draw(st.sets(st.integers(1, max(1, rows - 1))))
    grid = make_grid(rows, cells)
    if rows and not grid.exact:  # any cells, narrower ones than windows allow
        starts = np.array(sorted({0, *(e for e in edges if e < rows)}))
        grid = type(grid)(starts, np.append(starts[1:], rows) - 1)
    assert_reduced(grid, np.array(values, float))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 9000),
    st.integers(0, 3000),
    st.lists(st.integers(0, 8999), max_size=20),
    st.integers(0, 2**32 - 1),
)
def test_cells_cover_every_row_once_and_windows_are_exact(rows, cells, keep, seed):
    keep = [row for row in keep if row < rows]
    grid = make_grid(rows, cells, keep)
    covered = [np.arange(a, b + 1) for a, b in zip(grid.first, grid.last, strict=True)]
    assert np.array_equal(np.concatenate([*covered, []]), np.arange(rows))
    assert np.array_equal(
        grid.cell_of(np.arange(rows)), np.repeat(range(len(grid)), [*map(len, covered)])
    )
    if rows <= cells:
        assert grid.exact
        return
    assert (
        len(grid) <= cells + 3 + max(WIDTH, min(MAX_WINDOWS * WIDTH, cells // 2)) + 20
    )
    for row in (0, rows - 1, *keep[:1]):
        first, last = max(0, row - LEAD), min(rows - 1, row + LAG)
        around = range(first, last + 1) if row in keep[:1] else [row]
        for one in around:
            assert grid.first[grid.cell_of(one)] == grid.last[grid.cell_of(one)] == one
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(rows)
    values[rng.random(rows) < 0.05] = rng.choice([np.nan, np.inf, -np.inf])
    assert_reduced(grid, values)


def exact_rows(grid):
    return set(grid.first[grid.first == grid.last].tolist())


def test_as_many_windows_as_there_is_room_for():
    keep = range(1000, 100_000, 1000)
    wide = exact_rows(make_grid(200_000, 20_000, keep))
    for index, row in enumerate(keep):
        around = set(range(row - LEAD, row + LAG + 1))
        assert (around <= wide) == (index < MAX_WINDOWS)
    narrow = exact_rows(make_grid(200_000, 4 * WIDTH, keep))
    assert {1000 - LEAD, 1000 + LAG, 2000 - LEAD, 2000 + LAG} <= narrow
    assert 3000 not in narrow


def test_windows_that_overlap_are_paid_for_once():
    keep = [1000] * 50 + [1010, 9000]
    assert 9000 in exact_rows(make_grid(20_000, 5 * WIDTH, keep))


@pytest.mark.parametrize(
    ("values", "start", "end"),
    [
        ([1.0, 5.0, 3.0, 2.0], 1.0, 5.0),  # it rises from its first to its last value
        ([3.0, 5.0, 1.0, 2.0], 5.0, 1.0),  # it falls
        ([2.0, 2.0, 2.0, 2.0], 2.0, 2.0),
        ([np.nan, 4.0, 6.0, 5.0], 4.0, 6.0),
    ],
)
def test_a_cell_is_drawn_in_the_direction_of_its_line(values, start, end):
    grid = make_grid(6, 1, [])
    assert grid.first.tolist() == [0, 1, 5]
    reduced = grid.reduce(np.array([9.0, *values, 9.0]))
    assert (reduced.start[1], reduced.end[1]) == (start, end)
