"""Encoded rows, the batches cut from them, and the facts recorded of each batch.

Shapes: B rows of a batch, L tokens of its longest row, T tokens of all its rows.
``collate`` and ``batch_facts`` run at every step; they are written for speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from minigpt.corpus import Row, split
from minigpt.tokenizer import PAD_ID, SPECIALS, VOCAB_SIZE, encode_row, load_tokenizer

RARE_BELOW = 10  # a rare token occurs 1 to 9 times in the training rows
IGNORED_TARGET = -100  # what cross entropy skips


@dataclass(frozen=True, eq=False)
class Dataset:
    """Encoded rows of one split, with the token counts of the training split.

    Attributes:
        rows: uint16 arrays ``<bos> tokens <eos>``, read-only.
        regular: bool [rows], whether the row's verb is regular.
        token_counts: int64 [512], occurrences in the training rows.
        rare: bool [512], ``is_rare(token_counts)``.
        texts: the sentences the rows were encoded from.
    """

    rows: list[np.ndarray]
    regular: np.ndarray
    token_counts: np.ndarray
    rare: np.ndarray
    texts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True, eq=False)
class Batch:
    """What one training step reads.

    Attributes:
        index: batches served before this one.
        rows: B uint16 arrays, as in ``Dataset.rows``.
        regular: bool [B].
        inputs: int64 [B, L-1], a row without its last token, padded with the pad id.
        targets: int64 [B, L-1], the token after each input, padded with -100.
        tokens: uint16 [T], the rows one after the other, without padding.
        row_lengths: uint16 [B], tokens of each row; their sum is T.
    """

    index: int
    rows: Sequence[np.ndarray]
    regular: np.ndarray
    inputs: Tensor
    targets: Tensor
    tokens: np.ndarray
    row_lengths: np.ndarray


class BatchFacts(NamedTuple):
    """What the record says of one batch.

    Attributes:
        fingerprint: unsigned 64-bit hash of the token ids and the row boundaries.
        duplicate_rows: rows equal to another row of the batch; 8 copies give 8.
        rare_token_max_count: largest count in the batch of one rare token.
        rare_token_id: the token that reaches it, the smallest of several, -1 if none.
        rare_token_share: rare tokens / T, between 0 and 1.
    """

    fingerprint: int
    duplicate_rows: int
    rare_token_max_count: int
    rare_token_id: int
    rare_token_share: float


def count_tokens(rows: Iterable[np.ndarray]) -> np.ndarray:
    """Occurrences of every token id in the rows: int64 [512]."""
    return np.bincount(np.concatenate(list(rows)), minlength=VOCAB_SIZE)


def is_rare(token_counts: np.ndarray) -> np.ndarray:
    """Tokens with 1 to ``RARE_BELOW - 1`` occurrences; special tokens never are.

    Args:
        token_counts: int64 [512].

    Returns:
        bool [512].
    """
    rare = (token_counts > 0) & (token_counts < RARE_BELOW)
    rare[: len(SPECIALS)] = False
    return rare


@cache
def load_dataset() -> tuple[Dataset, Dataset]:
    """Encode the committed split: (train, validation), both with train's rarity."""
    tokenizer = load_tokenizer()
    parts = split()
    encoded = {
        name: [encode_row(tokenizer, row.text) for row in rows]
        for name, rows in vars(parts).items()
    }
    token_counts = count_tokens(encoded["train"])
    train = _dataset(parts.train, encoded["train"], token_counts)
    return train, _dataset(parts.validation, encoded["validation"], token_counts)


def _dataset(
    source: tuple[Row, ...], rows: list[np.ndarray], token_counts: np.ndarray
) -> Dataset:
    regular = np.array([row.regular for row in source])
    rare = is_rare(token_counts)
    for array in (*rows, regular, token_counts, rare):
        array.setflags(write=False)
    texts = tuple(row.text for row in source)
    return Dataset(rows, regular, token_counts, rare, texts)


def collate(index: int, rows: Sequence[np.ndarray], regular: np.ndarray) -> Batch:
    """Cut next-token inputs and targets from rows of different lengths.

    Args:
        index: batches served before this one.
        rows: B uint16 arrays of at least two tokens.
        regular: bool [B].
    """
    lengths = [len(row) for row in rows]
    assert min(lengths, default=0) > 1, f"rows of two tokens or more, got {lengths}"
    tokens = np.concatenate(rows)
    row_lengths = np.array(lengths, dtype=np.uint16)
    inside = np.arange(max(lengths)) < row_lengths[:, None]  # bool [B, L]
    padded = np.full(inside.shape, IGNORED_TARGET)
    padded[inside] = tokens
    targets = padded[:, 1:]
    inputs = np.where(targets == IGNORED_TARGET, PAD_ID, padded[:, :-1])
    return Batch(
        index,
        rows,
        regular,
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        tokens,
        row_lengths,
    )


def batch_facts(batch: Batch, rare: np.ndarray) -> BatchFacts:
    """Measure one batch exactly.

    Args:
        batch: the batch about to be trained on.
        rare: bool [512], as in ``Dataset.rare``.
    """
    tokens = batch.tokens
    rare_tokens = tokens[rare[tokens]]
    max_count, token_id = 0, -1
    if len(rare_tokens):
        counts = np.bincount(rare_tokens)
        token_id = int(counts.argmax())
        max_count = int(counts[token_id])
    return BatchFacts(
        _fingerprint(batch),
        _duplicate_rows(batch.rows),
        max_count,
        token_id,
        len(rare_tokens) / len(tokens),
    )


def _fingerprint(batch: Batch) -> int:
    # As many lengths as rows come first: no other batch has the same bytes.
    content = len(batch.rows).to_bytes(2, "little")
    content += batch.row_lengths.tobytes() + batch.tokens.tobytes()
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def _duplicate_rows(rows: Sequence[np.ndarray]) -> int:
    contents = [row.tobytes() for row in rows]
    if len(set(contents)) == len(contents):
        return 0
    return sum(count for count in Counter(contents).values() if count > 1)
