import math
from dataclasses import fields

import numpy as np
import pytest

from minigpt import records as col
from minigpt.batches import batch_facts, collate, load_dataset
from minigpt.observer import UpdateFacts
from minigpt.records import HISTOGRAM_EDGES, InputError, RecordLayout
from minigpt.step_columns import (
    StepColumns,
    StepFacts,
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


# -- the row -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def columns():
    train, _ = load_dataset()
    return StepColumns(train.rare, ("grad_norm/a", "act_mean_abs/b"), ["a", "c"])


def test_no_two_columns_share_a_name(columns):
    layout = columns.layout
    names = [*layout.scalars, *layout.tensors, *layout.integers, *layout.occasional]
    names += [*layout.arrays, *layout.constants]
    assert len(names) == len(set(names))
    assert {col.SPECTRAL_NORM + "a", col.SPECTRAL_NORM + "c"} <= set(layout.occasional)
    assert all(name == name.lower() and "/" in name for name in names)


def test_layout_survives_json(columns):
    data = columns.layout.to_json()
    assert RecordLayout.from_json(data) == columns.layout
    with pytest.raises(InputError, match="schema version: expected 1, found 99"):
        RecordLayout.from_json(data | {"schema_version": 99})


def test_every_fact_lands_in_its_own_column(columns):
    facts = StepFacts(
        loss=1.25,
        lr=2.25,
        lr_declared=3.25,
        norm_preclip=4.25,
        norm_postclip=5.25,
        clip_coef=6.25,
        nonfinite_grads=7,
        update=UpdateFacts(8.25, 9.25, 10.25),
        step_counter=11.0,
        param_hash=2**64 - 12,
        loss_scale=13.25,
        step_skipped=True,
        wall=15.25,
    )
    assert all(
        getattr(facts, f.name) != getattr(StepFacts(), f.name) for f in fields(facts)
    )
    train, _ = load_dataset()
    batch = collate(17, [train.rows[0], *train.rows[:3]], train.regular[[0, 0, 1, 2]])
    losses = np.arange(batch.targets.numel(), dtype=np.float32)
    real = losses[batch.targets.flatten().numpy() >= 0]
    data = batch_facts(batch, train.rare)
    tensors = floats(21.0, 22.0)
    record = columns.record(16, facts, batch, losses, tensors, {col.VAL_LOSS: 23.0})

    assert record.step == 16
    assert dict(zip(columns.layout.scalars, record.scalars.tolist(), strict=True)) == {
        col.TRAIN_LOSS: 1.25,
        col.LR: 2.25,
        col.LR_DECLARED: 3.25,
        col.GRAD_NORM_PRECLIP: 4.25,
        col.GRAD_NORM_POSTCLIP: 5.25,
        col.CLIP_COEF: 6.25,
        col.NONFINITE_GRADS: 7.0,
        col.UPDATE_NORM: 8.25,
        col.PARAM_NORM: 9.25,
        col.RELATIVE_UPDATE: 10.25,
        col.STEP_COUNTER: 11.0,
        col.LOSS_SCALE: 13.25,
        col.STEP_SKIPPED: 1.0,
        col.TIME_WALL: 15.25,
        col.BATCH_INDEX: 17.0,
        col.TOKEN_LOSS_P99: float(real.max()),
        col.DUPLICATE_ROWS: 2.0,
        col.RARE_TOKEN_MAX_COUNT: float(data.rare_token_max_count),
        col.RARE_TOKEN_ID: float(data.rare_token_id),
        col.RARE_TOKEN_SHARE: data.rare_token_share,
    }
    integers = dict(zip(columns.layout.integers, record.integers.tolist(), strict=True))
    assert integers == {
        col.BATCH_FINGERPRINT: data.fingerprint,
        col.PARAM_HASH: 2**64 - 12,
    }
    assert record.tensors is tensors
    arrays = {name: record.arrays[name].tolist() for name in columns.layout.arrays}
    assert arrays == {
        col.TOKEN_LOSS: real.tolist(),
        col.TOKEN_LOSS_HISTOGRAM: slow_histogram(real.tolist()),
        col.BATCH_TOKENS: batch.tokens.tolist(),
        col.BATCH_ROW_LENGTHS: batch.row_lengths.tolist(),
    }
    classes = class_losses(real, batch)
    assert record.occasional == {col.VAL_LOSS: 23.0, **classes}
    for name, dtype in columns.layout.arrays.items():
        assert record.arrays[name].dtype == dtype
