"""Steps trained again are held against the record, bit by bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.journal import encode_block, encode_header
from minigpt.records import (
    BATCH_TOKENS,
    GRAD_NORM_PRECLIP,
    PARAM_HASH,
    TIME_WALL,
    TOKEN_LOSS,
    TRAIN_LOSS,
    VAL_LOSS,
    RecordLayout,
    StepRecord,
)
from runners.replay import Replay

LAYOUT = RecordLayout(
    scalars=(TIME_WALL, TRAIN_LOSS, GRAD_NORM_PRECLIP),
    tensors=("grad_norm/a", "grad_norm/b"),
    integers=(PARAM_HASH,),
    occasional=(VAL_LOSS,),
    arrays={TOKEN_LOSS: "float32", BATCH_TOKENS: "uint16"},
)


def record(step, **changes):
    whole = StepRecord(
        step,
        np.array([1.7e9 + step, 2.0 + step, np.nan]),
        np.array([0.5, np.inf], np.float32),
        np.array([step * 7], np.uint64),
        {
            TOKEN_LOSS: np.full(step + 1, 0.25, np.float32),
            BATCH_TOKENS: np.arange(step, dtype=np.uint16),
        },
        {VAL_LOSS: np.nan} if step % 2 == 0 else {},
    )
    return replace(whole, **changes)


@pytest.fixture
def journal(tmp_path):
    """Ten steps in two blocks."""
    path = tmp_path / "journal.bin"
    blocks = (range(6), range(6, 10))
    data = [encode_block(LAYOUT, [record(s) for s in steps]) for steps in blocks]
    path.write_bytes(encode_header(LAYOUT) + b"".join(data))
    return path


def test_the_same_steps_at_another_time_do_not_differ(journal):
    replay = Replay(journal, 3)
    assert replay.steps == 7
    for step in range(3, 10):
        later = record(step).scalars + np.array([3600.0, 0.0, 0.0])
        assert replay.take(record(step, scalars=later))
    assert replay.difference is None
    assert not replay.take(record(10))
    resume = {}
    replay.report(resume)
    assert resume == {}


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"scalars": np.array([0.0, np.nextafter(10.0, 11), np.nan])}, TRAIN_LOSS),
        ({"scalars": np.array([0.0, 10.0, 1.0])}, GRAD_NORM_PRECLIP),
        ({"tensors": np.array([0.5, -np.inf], np.float32)}, "grad_norm/b"),
        ({"integers": np.array([57], np.uint64)}, PARAM_HASH),
        ({"occasional": {}}, VAL_LOSS),
        ({"occasional": {VAL_LOSS: 1.0}}, VAL_LOSS),
        ({"arrays": {BATCH_TOKENS: np.arange(8, dtype=np.uint16)}}, TOKEN_LOSS),
        (
            {
                "arrays": {
                    TOKEN_LOSS: np.full(9, 0.25, np.float32),
                    BATCH_TOKENS: np.arange(1, 9, dtype=np.uint16),
                }
            },
            BATCH_TOKENS,
        ),
    ],
)
def test_one_bit_is_a_difference_and_its_column_is_named(journal, changes, column):
    replay = Replay(journal, 7)
    for step in (7, 8, 9):
        assert replay.take(record(step, **(changes if step == 8 else {})))
    resume = {"at_step": 10}
    replay.report(resume)
    differs = {"first_step": 8, "column": column, "count": 1}
    assert resume == {"at_step": 10, "differs": differs}


def test_minus_zero_is_not_zero(tmp_path):
    path = tmp_path / "journal.bin"
    zero = record(0, scalars=np.zeros(3))
    path.write_bytes(encode_header(LAYOUT) + encode_block(LAYOUT, [zero]))
    replay = Replay(path, 0)
    replay.take(record(0, scalars=np.array([0.0, -0.0, 0.0])))
    assert replay.difference.column == TRAIN_LOSS


def test_every_differing_step_is_counted_and_the_first_is_named(journal):
    replay = Replay(journal, 0)
    for step in range(10):
        odd = {"integers": np.array([0], np.uint64)} if step > 4 else {}
        replay.take(record(step, **odd))
    assert (replay.difference.first_step, replay.difference.count) == (5, 5)
