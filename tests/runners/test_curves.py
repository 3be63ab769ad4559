"""The points that MLflow gets: a function of the record, live or afterwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.ema import ema
from analysis.rule import RuleParameters
from analysis.spikes import ship
from minigpt import records as col
from runners.curves import CADENCE_CURVES, CURVES, LOSS_EMA, CurveSelector

RULE = RuleParameters()
STEPS = 700
SPIKE = 433


@dataclass
class Table:
    """Columns in memory, from step ``first`` on."""

    steps: np.ndarray
    values: dict[str, np.ndarray]

    def scalar(self, name):
        return self.values[name]

    def measured(self, name):
        return ~np.isnan(self.values[name])

    def part(self, first, end):
        values = {name: column[first:end] for name, column in self.values.items()}
        return Table(self.steps[first:end], values)


def make_table(steps=STEPS, spike=SPIKE):
    rng = np.random.default_rng(0)
    values = {name: rng.random(steps) for name in CURVES}
    values[col.TRAIN_LOSS] = 2 + 0.1 * rng.standard_normal(steps)
    values[col.GRAD_NORM_PRECLIP] = np.exp(0.2 * rng.standard_normal(steps))
    values[col.GRAD_NORM_PRECLIP][spike] = 50
    values[col.TIME_WALL] = 1.7e9 + np.cumsum(rng.random(steps))
    measured = np.arange(steps) % 100 == 7
    for name in CADENCE_CURVES:
        values[name] = np.where(measured, rng.random(steps), np.nan)
    return Table(np.arange(steps), values)


@pytest.fixture(scope="module")
def table():
    return make_table()


def select(table, cuts=()):
    """All points when the record arrives in pieces that end at ``cuts``."""
    selector, points, start = CurveSelector(RULE), [], 0
    for end in [*sorted(cuts), len(table.steps)]:
        points += selector.feed(table.part(start, end))
        start = end
    return points + selector.finish(True)


@pytest.fixture(scope="module")
def whole(table):
    return select(table)


def expected_steps(table):
    occasional = table.measured(col.VAL_LOSS)
    loss, norm = (table.scalar(n) for n in (col.TRAIN_LOSS, col.GRAD_NORM_PRECLIP))
    return ship(loss, norm, occasional, RULE).tolist()


def test_the_points_are_those_of_the_rule(table, whole):
    steps = [point.step for point in whole]
    assert steps == expected_steps(table)
    assert set(range(SPIKE - RULE.lead, SPIKE + RULE.lag + 1)) < set(steps)
    assert {0, 10, 20, 7, 107, STEPS - 1} < set(steps)
    assert not {1, 2, 3, 301} & set(steps)


@settings(deadline=None, max_examples=60)
@given(cuts=st.lists(st.integers(0, STEPS), max_size=12))
def test_pieces_of_any_size_give_the_same_points(cuts):
    table = make_table()
    assert select(table, cuts) == select(table)


def test_one_step_at_a_time_gives_the_same_points(table, whole):
    assert select(table, range(1, STEPS)) == whole


def test_a_whole_record_after_a_live_part_repeats_nothing(table, whole):
    """What the shipper does when a run closes: it reads the record from its start."""
    selector = CurveSelector(RULE)
    points = selector.feed(table.part(0, 250))
    points += selector.feed(table)
    assert points + selector.finish(True) == whole


def test_points_are_decided_in_time(table):
    """Live, a point waits for ``lead`` further steps and for nothing else."""
    selector = CurveSelector(RULE)
    for step in range(200):
        for point in selector.feed(table.part(step, step + 1)):
            assert point.step == step - RULE.lead


def test_values_and_times_are_those_of_the_record(table, whole):
    smooth = ema(table.scalar(col.TRAIN_LOSS))
    for point in whole:
        assert point.timestamp_ms == int(table.scalar(col.TIME_WALL)[point.step] * 1000)
        names = {*CURVES, LOSS_EMA}
        if point.step % 100 == 7:
            names |= set(CADENCE_CURVES)
        assert point.values.keys() == names
        assert point.values[LOSS_EMA] == smooth[point.step]
        for name in names - {LOSS_EMA}:
            assert point.values[name] == table.scalar(name)[point.step]


def test_a_run_has_few_enough_curves_to_look_at():
    assert len({*CURVES, *CADENCE_CURVES, LOSS_EMA}) <= 15


def test_nan_is_shipped_as_nan():
    table = make_table(steps=120, spike=3)
    table.values[col.TRAIN_LOSS][60:] = np.nan
    points = {point.step: point.values[col.TRAIN_LOSS] for point in select(table)}
    assert set(range(50, 111)) <= points.keys()
    assert np.isnan(points[60])
    assert not np.isnan(points[59])


def test_an_empty_record_has_no_points(table):
    assert select(table.part(0, 0)) == []
