import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.batches import batch_facts, collate, count_tokens, is_rare, load_dataset
from minigpt.corpus import split
from minigpt.tokenizer import PAD_ID, VOCAB_SIZE

ROWS = st.lists(
    st.lists(st.integers(1, 9), min_size=2, max_size=6).map(
        lambda ids: np.array(ids, dtype=np.uint16)
    ),
    min_size=1,
    max_size=9,
)
RARE = np.isin(np.arange(VOCAB_SIZE), [4, 5, 6])


def make_batch(rows):
    return collate(7, rows, np.zeros(len(rows), dtype=bool))


def slow_facts(rows, rare):
    """The definitions, word for word, without the fingerprint."""
    rows = [row.tolist() for row in rows]
    tokens = [token for row in rows for token in row]
    rare_tokens = [token for token in tokens if rare[token]]
    duplicates = sum(
        any(row == other for j, other in enumerate(rows) if j != i)
        for i, row in enumerate(rows)
    )
    max_count = max((rare_tokens.count(token) for token in rare_tokens), default=0)
    reach = [token for token in rare_tokens if rare_tokens.count(token) == max_count]
    return (
        duplicates,
        max_count,
        min(reach, default=-1),
        len(rare_tokens) / len(tokens),
    )


@settings(deadline=None)
@given(ROWS)
def test_batch_facts_agree_with_the_slow_definitions(rows):
    assert batch_facts(make_batch(rows), RARE)[1:] == slow_facts(rows, RARE)


@settings(deadline=None)
@given(ROWS)
def test_collate_agrees_with_row_by_row_padding(rows):
    batch = make_batch(rows)
    width = max(map(len, rows)) - 1
    inputs = [[*r[:-1].tolist(), *[PAD_ID] * (width + 1 - len(r))] for r in rows]
    targets = [[*r[1:].tolist(), *[-100] * (width + 1 - len(r))] for r in rows]
    assert batch.inputs.tolist() == inputs
    assert batch.targets.tolist() == targets
    assert batch.tokens.tolist() == [token for row in rows for token in row.tolist()]
    assert batch.row_lengths.tolist() == [len(row) for row in rows]


def test_collate_types():
    batch = make_batch([np.array([1, 5, 2], dtype=np.uint16)])
    assert (batch.inputs.dtype, batch.targets.dtype) == (torch.int64, torch.int64)
    assert (batch.tokens.dtype, batch.row_lengths.dtype) == (np.uint16, np.uint16)
    assert batch.index == 7


@settings(deadline=None)
@given(ROWS, ROWS)
def test_fingerprint_is_equal_exactly_for_equal_rows(rows, others):
    equal = [row.tolist() for row in rows] == [row.tolist() for row in others]
    prints = [batch_facts(make_batch(r), RARE).fingerprint for r in (rows, others)]
    assert (prints[0] == prints[1]) == equal
    assert 0 <= prints[0] < 2**64


def test_fingerprint_sees_row_boundaries():
    tokens = np.array([1, 5, 2, 1, 6, 2], dtype=np.uint16)
    cuts = [[tokens[:3], tokens[3:]], [tokens[:2], tokens[2:]], [tokens]]
    assert len({batch_facts(make_batch(rows), RARE).fingerprint for rows in cuts}) == 3


def test_eight_copies_of_a_row_are_eight_duplicates():
    facts = batch_facts(make_batch([np.array([1, 5, 2], dtype=np.uint16)] * 8), RARE)
    assert facts.duplicate_rows == 8
    assert (facts.rare_token_max_count, facts.rare_token_id) == (8, 5)
    assert facts.rare_token_share == pytest.approx(1 / 3)


def test_no_rare_token_at_all():
    facts = batch_facts(make_batch([np.array([1, 8, 2], dtype=np.uint16)]), RARE)
    assert facts[1:] == (0, 0, -1, 0.0)


def test_rare_means_one_to_nine_occurrences_in_training():
    counts = np.zeros(VOCAB_SIZE, dtype=np.int64)
    counts[[0, 1, 2]] = 5  # special tokens of a tiny data set
    counts[[3, 4, 5, 6]] = 0, 1, 9, 10
    assert np.flatnonzero(is_rare(counts)).tolist() == [4, 5]


def test_dataset_holds_the_split_with_the_rarity_of_training():
    train, validation = load_dataset()
    assert (len(train), len(validation)) == (240, 60)
    assert train.texts == tuple(row.text for row in split().train)
    assert train.regular.tolist() == [row.regular for row in split().train]
    assert train.token_counts.tolist() == count_tokens(train.rows).tolist()
    assert train.token_counts.sum() == sum(map(len, train.rows))
    assert validation.token_counts is train.token_counts
    assert np.array_equal(validation.rare, train.rare)


def test_dataset_cannot_be_changed_by_a_fault():
    train, _ = load_dataset()
    with pytest.raises(ValueError, match="read-only"):
        train.rows[0][1] = 3


def test_a_batch_costs_a_small_part_of_a_training_step():
    # About 20 microseconds; a training step takes 3,000. Ten times that is a mistake.
    train, _ = load_dataset()
    rows, regular = train.rows[:8], train.regular[:8]
    seconds = []
    for _ in range(300):
        start = time.perf_counter()
        batch_facts(collate(0, rows, regular), train.rare)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 200e-6
