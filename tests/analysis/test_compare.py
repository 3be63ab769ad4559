"""Comparing runs: the first differing step against a loop, and differing choices."""

import copy
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.compare import UNSET, differing_choices, first_difference
from analysis.history import load
from minigpt import records as col
from tests.analysis.dashboard.runs import history

ODD = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 5e-324]


def told(one, other):
    found = first_difference(one, other)
    return found.step, found.columns


def word(value):
    """What two values must share to be equal bit for bit; NaNs are all one."""
    if isinstance(value, (float, np.floating)):
        return "nan" if value != value else struct.pack("<d", float(value))
    return int(value)


def slow(one, other):
    """Step by step, column by column, entry by entry."""
    for row in range(min(len(one), len(other))):
        if one.steps[row] != other.steps[row]:
            break
        differing = [
            name
            for name in one.columns
            if other.has(name) and name != col.TIME_WALL
            if cell(one, name, row) != cell(other, name, row)
        ]
        if differing:
            return int(one.steps[row]), tuple(differing)
    return None, ()


def cell(run, name, row):
    if name in run.constants:
        return run.constants[name]
    if name in run.data.arrays:
        values, offsets = run.data.arrays[name]
        return [word(one) for one in values[offsets[row] : offsets[row + 1]]]
    if not run.data.measured.get(name, np.ones(len(run), bool))[row]:
        return "not measured"
    return word(run.data.flat[name][row])


floats = st.sampled_from(ODD)


@st.composite
def runs(draw):
    count = draw(st.integers(0, 5))

    def entries(kind):
        rows = draw(
            st.lists(st.lists(kind, max_size=3), min_size=count, max_size=count)
        )
        return [np.array(row, float) for row in rows]

    column = st.lists(floats, min_size=count, max_size=count)
    prints = st.lists(st.integers(2**64 - 2, 2**64 - 1), min_size=count, max_size=count)
    rows = st.dictionaries(st.integers(0, max(count - 1, 0)), floats)
    return history(
        {
            "a": np.array(draw(column), float),
            "b": np.array(draw(column), np.float32),
            "hash": np.array(draw(prints), np.uint64),
        },
        {"ragged": entries(floats)},
        {"now and then": draw(rows) if count else {}},
        steps=np.arange(count) + draw(st.sampled_from([0, 0, 0, 1])),
        constants={col.DTYPE: draw(st.sampled_from(["float32", "float32", "x"]))},
    )


@settings(max_examples=150, deadline=None)
@given(runs(), runs())
def test_it_finds_what_a_loop_finds(one, other):
    assert told(one, other) == slow(one, other)
    assert told(other, one) == slow(other, one)
    assert told(one, copy.deepcopy(one)) == (None, ())


@settings(max_examples=150, deadline=None)
@given(runs(), st.data())
def test_one_changed_entry_is_found_at_its_row(one, data):
    other = copy.deepcopy(one)
    if not len(one):
        return
    row = data.draw(st.integers(0, len(one) - 1))
    name = data.draw(st.sampled_from(["a", "b", "hash"]))
    other.data.flat[name][row] = data.draw(
        st.integers(0, 9) if name == "hash" else st.sampled_from(ODD)
    )
    assert told(one, other) == slow(one, other)


@pytest.mark.parametrize(
    ("mine", "theirs", "step"),
    [
        ([[1.0], []], [[1.0], []], None),
        ([[1.0], []], [[1.0], [2.0]], 1),
        ([[], [1.0], [2.0]], [[], [1.0], [3.0]], 2),
        ([[], [], [1.0]], [[], [1.0], []], 1),  # the same entries, cut otherwise
        ([[5.0], [1.0, 2.0]], [[6.0], [1.0]], 0),
        ([[0.0]], [[-0.0]], 0),
        ([[np.nan]], [[-np.nan]], None),
        ([[1.0], [2.0]], [[1.0]], None),
        ([], [], None),
    ],
)
def test_ragged_columns(mine, theirs, step):
    one, other = (
        history({}, {"ragged": [np.array(row, float) for row in rows]})
        for rows in (mine, theirs)
    )
    assert first_difference(one, other).step == step


def test_a_measured_nan_is_not_a_missing_one():
    one, other = (
        history({"a": np.zeros(3)}, None, {"v": v}) for v in ({1: np.nan}, {})
    )
    assert told(one, other) == (1, ("v",))


def test_a_column_of_another_kind_is_not_compared():
    """An array of one that is a scalar of the other was a KeyError."""
    one = history({"a": np.zeros(2), "x": np.zeros(2), "h": np.zeros(2, np.uint64)})
    other = history(
        {"a": np.zeros(2), "h": np.zeros(2)},
        {"x": [np.zeros(1)] * 2},
        constants={"c": ""},
    )
    for found in (first_difference(one, other), first_difference(other, one)):
        assert (found.step, found.lone) == (None, ("c", "h", "x"))


def test_wall_clock_time_is_left_out():
    one, other = (
        history({"a": np.zeros(2), col.TIME_WALL: np.full(2, at)}) for at in (1.0, 2.0)
    )
    assert first_difference(one, other).step is None
    assert first_difference(one, history({"a": np.zeros(2)})).lone == ()


def test_only_steps_that_both_have_are_compared():
    one = history({"a": [1.0, 2.0, 3.0]})
    longer = history({"a": [1.0, 2.0, 3.0, 4.0]})
    assert first_difference(one, longer).common == 3
    later = history({"a": [1.0, 2.0, 9.0]}, steps=[0, 1, 5])
    found = first_difference(one, later)
    assert (found.step, found.common) == (None, 2)


def test_the_step_is_the_number_and_not_the_row():
    one, other = (history({"a": [1.0, x]}, steps=[70, 80]) for x in (2.0, 3.0))
    assert told(one, other) == (80, ("a",))


def test_a_journal_and_its_parquet_hold_the_same(build, tmp_path):
    records = build.records(20, odd=True)
    journal = load(build.run(tmp_path / "a", records))
    closed = load(build.run(tmp_path / "b", records, closed=True, keep_journal=False))
    assert told(journal, closed) == told(closed, journal) == (None, ())


# -- choices ---------------------------------------------------------------------------


def test_choices_that_differ_and_those_that_are_not_set():
    configs = [
        {"seed": 1, "clip": {"at": 0.5, "kind": "norm"}, "same": [1, 2]},
        {"seed": 1, "clip": {"at": None, "kind": "norm"}, "same": [1, 2]},
        {"seed": 2, "same": [1, 2], "more": {"deep": {"er": True}}, "none": {}},
    ]
    assert differing_choices(configs) == {
        "seed": ["1", "1", "2"],
        "clip.at": ["0.5", "null", UNSET],
        "clip.kind": ["norm", "norm", UNSET],
        "more.deep.er": [UNSET, UNSET, "True"],
        "none": [UNSET, UNSET, "{}"],
    }
    assert list(differing_choices(configs))[:2] == ["seed", "clip.at"]


def test_a_deeply_nested_config_is_no_recursion_error():
    config = {"end": 1}
    for _ in range(5000):
        config = {"a": config}
    ((key, values),) = differing_choices([config, {}]).items()
    assert (key.count("a."), values) == (5000, ["1", UNSET])
