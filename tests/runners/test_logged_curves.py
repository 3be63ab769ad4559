"""The points of a script's run: all that it logged, and the observer's thinned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.blocks import concatenate
from analysis.history import load
from analysis.journal import JournalReader
from analysis.rule import DEFAULT_RULE
from analysis.spikes import ShippingRule
from analysis.summary import SUMMARY_KEYS
from minigpt import records as col
from runners.curves import (
    OBSERVED_CURVES,
    CurveSelector,
    journal_rows,
    selector_for,
)
from tests.runners.scripts import Loop, begin, manifest_of, measured

STEPS = 130
FIRST = 1000


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    loop = Loop()
    run = begin(tmp_path_factory.mktemp("logged"))
    run.watch(loop.model, loop.optimizer)
    for step in range(FIRST, FIRST + STEPS):
        loss = loop.backward()
        loop.optimizer.step()
        if step % 2 == 0:
            run.log({"train_loss": 50.0 if step == FIRST + 120 else loss}, step=step)
        if step % 50 == 0:
            run.log({"acc": step, "late" if step > FIRST + 60 else "acc": 1}, step=step)
    run._record._rows.finish()
    run._record._writer.close()
    run._ending.done = True
    return run


def selected(run, feed, finished=True):
    selector = selector_for(manifest_of(run))
    points = [point for part in feed for point in selector.feed(part)]
    return points + selector.finish(finished)


def blocks(run):
    reader = JournalReader(run.folder / "journal.bin")
    for block in reader.blocks():
        yield journal_rows(reader.layout, block)


def flat(points):
    return sorted(
        (p.step, p.timestamp_ms, key, repr(value))
        for p in points
        for key, value in p.values.items()
    )


def test_every_logged_value_is_shipped_at_its_step_and_time(run):
    history = load(run.folder)
    walls = dict(
        zip(history.steps.tolist(), history.scalar(col.TIME_WALL), strict=True)
    )
    points = selected(run, [history])
    for key in ("train_loss", "acc", "late"):
        shipped = {p.step: p.values[key] for p in points if key in p.values}
        assert shipped == measured(history, key)
    for point in points:
        assert point.timestamp_ms == int(walls[point.step] * 1000)


def test_the_observers_curves_are_thinned_by_row(run):
    history = load(run.folder)
    losses = measured(history, "train_loss")
    rule, expected = ShippingRule(DEFAULT_RULE), []
    norms = history.scalar(col.GRAD_NORM_PRECLIP).tolist()
    for row, norm in enumerate(norms):
        expected += rule.push(row, losses.get(FIRST + row), norm, False)
    expected += rule.finish()
    points = [p for p in selected(run, [history]) if col.UPDATE_NORM in p.values]
    assert [p.step - FIRST for p in points] == expected
    assert set(range(110, 130)) < set(expected)  # around the loss of 50
    assert {0, 10, 20} < set(expected)
    assert not {1, 2, 3} & set(expected)
    assert all(p.values.keys() == set(OBSERVED_CURVES) for p in points)


def test_live_and_afterwards_it_is_the_same(run):
    whole = flat(selected(run, [load(run.folder)]))
    assert flat(selected(run, blocks(run))) == whole
    assert flat(selected(run, [*blocks(run), load(run.folder)])) == whole


@settings(deadline=None, max_examples=30)
@given(cuts=st.lists(st.integers(0, STEPS), max_size=8))
def test_pieces_of_any_size_give_the_same_points(run, cuts):
    reader = JournalReader(run.folder / "journal.bin")
    block, parts = _joined(reader), []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), STEPS], strict=True):
        parts.append(journal_rows(reader.layout, _part(block, start, end)))
    assert flat(selected(run, parts)) == flat(selected(run, [load(run.folder)]))


def _joined(reader):
    found = reader.read_new()
    return concatenate(reader.layout, found)


def _part(block, start, end):
    rows = slice(start, end)
    return replace(
        block,
        **{
            name: getattr(block, name)[rows]
            for name in ("steps", "scalars", "tensors", "integers")
        },
        arrays={},
        occasional=[
            (row - start, name, value)
            for row, name, value in block.occasional
            if start <= row < end
        ],
    )


def test_a_run_that_may_be_resumed_ships_no_last_step(run):
    history = load(run.folder)
    finished = {p.step for p in selected(run, [history]) if col.LR in p.values}
    killed = {p.step for p in selected(run, [history], False) if col.LR in p.values}
    assert finished - killed <= {FIRST + STEPS - 1}


def test_a_row_without_an_update_ships_no_figures_of_one(tmp_path):
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        run.log({"val_loss": 2.0}, step=0)
        loop.backward()
        loop.optimizer.step()
        run.log({"loss": 1.0}, step=1)
    points = selected(run, [load(run.folder)])
    first = [point.values for point in points if point.step == 0]
    assert first == [{"val_loss": 2.0}]


def test_unwatched_runs_ship_what_was_logged_and_no_more(tmp_path):
    with begin(tmp_path) as run:
        for step in (3, 30, 31):
            run.log({"a": np.nan}, step=step)
    points = selected(run, [load(run.folder)])
    assert [(p.step, [*p.values]) for p in points] == [
        (step, ["a"]) for step in (3, 30, 31)
    ]


def test_the_kind_of_run_decides(run):
    manifest = manifest_of(run)
    del manifest["kind"]
    assert isinstance(selector_for(manifest), CurveSelector)


def test_a_run_has_few_keys_of_our_own_making():
    assert len(OBSERVED_CURVES) + len(SUMMARY_KEYS) <= 60
