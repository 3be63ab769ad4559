"""The batch log of a page: what each shown batch contained, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.dashboard.payload import Payload
from analysis.dashboard.vocabulary import read_vocabulary
from analysis.history import RunHistory
from minigpt import records as col
from minigpt.records import InputError

MAX_TOKENS = 200_000  # of a page; more would make it larger than the charts
LEAD, LAG = 5, 20  # batches shown before and after a flagged step of a long run
# Losses are written as 1/2048 nat in 16 bits: finer than a reader sees.
LOSS_UNIT, LOSS_BEYOND, LOSS_ODD = 2048, 65534, 65535
_FACTS = (
    (col.BATCH_INDEX, "batch index"),
    (col.DUPLICATE_ROWS, "rows equal to another"),
    (col.RARE_TOKEN_MAX_COUNT, "largest count of a rare token"),
    (col.RARE_TOKEN_ID, "that token"),
    (col.RARE_TOKEN_SHARE, "share of rare tokens"),
)


@dataclass(frozen=True, eq=False)
class _Ragged:
    values: np.ndarray
    offsets: np.ndarray

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Entries of these rows one after another, and how many each has."""
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        parts = [self.values[a:b] for a, b in zip(starts, ends, strict=True)]
        whole = np.concatenate(parts) if parts else self.values[:0]
        return whole, ends - starts


def batch_log(run: RunHistory, keep: list[int], payload: Payload) -> dict[str, Any]:
    """The batches that the page holds, packed, and what is said of the others.

    Args:
        run: the record.
        keep: rows of flagged steps; around them batches are kept in any case.
        payload: takes the numbers.

    Returns:
        Plain JSON: "absent" with the reason, or where the parts are in the payload.
    """
    if not len(run):
        return {"absent": "the record has no steps"}
    names = (col.BATCH_TOKENS, col.BATCH_ROW_LENGTHS)
    missing = [name for name in names if not run.has(name)]
    absent = f"the record has no column {' or '.join(missing)}"
    rows = _shown_rows(run, keep)
    facts = _facts(run, rows, payload)
    if missing and not facts:
        return {"absent": absent}  # there is nothing to say of a single step
    log = {"rows": payload.integers(run.steps[rows]), "facts": facts}
    if missing:
        return log | {"absent": absent}
    if not _fits(run, rows):
        return log | {"absent": "the lengths of the rows are not those of the tokens"}
    return log | _texts(run, rows, payload) | {"kept": len(rows), "of": len(run)}


def _shown_rows(run: RunHistory, keep: list[int]) -> np.ndarray:
    if not run.has(col.BATCH_TOKENS):
        total = 0
    else:
        total = len(run.array(col.BATCH_TOKENS)[0])
    if total <= MAX_TOKENS and len(run) <= MAX_TOKENS // 16:
        return np.arange(len(run))
    away = np.full(len(run), len(run))  # how far the closest of them is
    spans = {0: (0, 0), len(run) - 1: (0, 0)} | dict.fromkeys(keep, (LEAD, LAG))
    for row, (lead, lag) in spans.items():
        around = np.arange(max(0, row - lead), min(row + lag + 1, len(run)))
        away[around] = np.minimum(away[around], np.abs(around - row))
    rows = np.flatnonzero(away < len(run))
    if not run.has(col.BATCH_TOKENS):
        return rows
    # What was flagged comes first, then what lies next to it, as far as there is room.
    rows = rows[np.argsort(away[rows], kind="stable")]
    offsets = run.array(col.BATCH_TOKENS)[1]
    sizes = np.cumsum(offsets[rows + 1] - offsets[rows])
    return np.sort(rows[sizes <= MAX_TOKENS])


def _fits(run: RunHistory, rows: np.ndarray) -> bool:
    """Whether the rows of each batch, all with a token in them, make up its tokens."""
    names = (col.BATCH_TOKENS, col.BATCH_ROW_LENGTHS)
    if any(run.array(name)[0].dtype.kind == "f" for name in names):
        return False
    _, sizes = _Ragged(*run.array(col.BATCH_TOKENS)).of(rows)
    lengths, counts = _Ragged(*run.array(col.BATCH_ROW_LENGTHS)).of(rows)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    sums = np.diff(ends[np.concatenate([[0], np.cumsum(counts)])])
    return bool(np.all(lengths >= 1) and np.array_equal(sums, sizes))


def _facts(run: RunHistory, rows: np.ndarray, payload: Payload) -> list[dict[str, Any]]:
    facts = [
        {"label": label, "token": name == col.RARE_TOKEN_ID}
        | {"values": payload.floats(run.scalar(name)[rows])}
        for name, label in _FACTS
        if run.has(name)
    ]
    if run.has(col.BATCH_FINGERPRINT):
        prints = run.integer(col.BATCH_FINGERPRINT)[rows]
        halves = np.stack([prints >> np.uint64(32), prints & np.uint64(2**32 - 1)], 1)
        parts = payload.integers(halves.ravel().astype(np.uint32))
        facts.insert(0, {"label": "fingerprint", "hex": True, "values": parts})
    return facts


def _texts(run: RunHistory, rows: np.ndarray, payload: Payload) -> dict[str, Any]:
    tokens, sizes = _Ragged(*run.array(col.BATCH_TOKENS)).of(rows)
    lengths, counts = _Ragged(*run.array(col.BATCH_ROW_LENGTHS)).of(rows)
    vocabulary, problem = {}, ""
    try:
        vocabulary = read_vocabulary(run)
    except InputError as error:
        problem = f"the tokens are shown as numbers: {error}"
    used = np.unique(tokens).tolist()
    if run.has(col.RARE_TOKEN_ID):
        named = np.unique(run.scalar(col.RARE_TOKEN_ID)[rows]).tolist()
        used += [int(one) for one in named if one in vocabulary]  # a NaN is not
    texts = {str(n): vocabulary[n] for n in sorted(set(used)) if n in vocabulary}
    losses = _losses(run, rows, sizes - counts, payload)
    if losses is None:
        problem += "; " if problem else ""
        problem += "the record has no losses that fit the tokens"
    return {
        "tokens": payload.integers(tokens),
        "sizes": payload.integers(sizes),
        "lengths": payload.integers(lengths),
        "counts": payload.integers(counts),
        "texts": texts,
        "problem": problem,
        "losses": losses,
    }


def _losses(
    run: RunHistory, rows: np.ndarray, predicted: np.ndarray, payload: Payload
) -> int | None:
    """Token losses, aligned with the tokens that were predicted; None if they are not.

    Every token of a row but its first is predicted once.
    """
    if not run.has(col.TOKEN_LOSS):
        return None
    losses, sizes = _Ragged(*run.array(col.TOKEN_LOSS)).of(rows)
    if not np.array_equal(sizes, predicted):
        return None
    finite = np.isfinite(losses)
    units = np.clip(np.where(finite, losses, 0), 0, LOSS_BEYOND) * float(LOSS_UNIT)
    packed = np.clip(np.rint(units), 0, LOSS_BEYOND).astype(np.uint16)
    packed[~finite] = LOSS_ODD
    return payload.integers(packed)
