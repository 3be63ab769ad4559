from dataclasses import asdict

import numpy as np
import pytest

from minigpt import records as col
from minigpt.batches import batch_facts, collate, load_dataset
from minigpt.observer import UpdateFacts
from minigpt.records import InputError, RecordLayout
from minigpt.step_columns import StepColumns, StepFacts, class_losses, loss_histogram


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
    # Every field differs from its default: one that is forgotten would show.
    assert not asdict(StepFacts()).items() & asdict(facts).items()
    train, _ = load_dataset()
    batch = collate(17, [train.rows[0], *train.rows[:3]], train.regular[[0, 0, 1, 2]])
    losses = np.arange(batch.targets.numel(), dtype=np.float32)
    real = losses[batch.targets.flatten().numpy() >= 0]
    data = batch_facts(batch, train.rare)
    tensors = np.array([21.0, 22.0], dtype=np.float32)
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
        col.TOKEN_LOSS_HISTOGRAM: loss_histogram(real).tolist(),
        col.BATCH_TOKENS: batch.tokens.tolist(),
        col.BATCH_ROW_LENGTHS: batch.row_lengths.tolist(),
    }
    classes = class_losses(real, batch)
    assert record.occasional == {col.VAL_LOSS: 23.0, **classes}
    for name, dtype in columns.layout.arrays.items():
        assert record.arrays[name].dtype == dtype
