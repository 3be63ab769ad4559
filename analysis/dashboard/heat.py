"""Logged histograms on one scale, so that a page can draw them side by side.

Each was recorded between its own smallest and largest value. Here their counts are
dealt to common bins, as if the values of a bin lay evenly in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.history import RunHistory
from analysis.logged import COUNTS, EDGES, HISTOGRAM

BINS = 32
PARTS = 65535  # a count is written as a part of its step's, in 16 bits
MAX_READ = 20_000  # histograms of one key that are read; a screen shows fewer


@dataclass(frozen=True, eq=False)
class Heat:
    """The histograms of one key.

    Attributes:
        rows: int64, shape (m,), rows of the record that have one.
        low: where the lowest bin begins.
        width: of a bin.
        parts: uint16, shape (m, BINS): how much of a step's values lies in a bin, in
            units of 1 / ``PARTS``.
        medians: float64, shape (m,); NaN where no value was finite.
    """

    rows: np.ndarray
    low: float
    width: float
    parts: np.ndarray
    medians: np.ndarray


def read_heat(run: RunHistory, key: str) -> Heat | None:
    """The histograms of a key; None if none of them is whole.

    Args:
        run: the record.
        key: of ``log_histogram``.
    """
    counts, count_at = run.array(HISTOGRAM + key + COUNTS)
    edges, edge_at = run.array(HISTOGRAM + key + EDGES)
    sizes = np.diff(count_at)
    rows = np.flatnonzero((sizes > 0) & (np.diff(edge_at) == sizes + 1))
    rows = rows[:: max(1, -(-len(rows) // MAX_READ))]
    pairs = [
        (
            edges[edge_at[row] : edge_at[row + 1]].astype(np.float64),
            counts[count_at[row] : count_at[row + 1]].astype(np.float64),
        )
        for row in rows
    ]
    whole = [_is_whole(*pair) for pair in pairs]
    rows, pairs = rows[whole], [p for p, ok in zip(pairs, whole, strict=True) if ok]
    if not pairs:
        return None
    low = min(edge[0] for edge, _ in pairs)
    high = max(edge[-1] for edge, _ in pairs)
    scale = np.linspace(low, high, BINS + 1)
    dealt = [_deal(scale, *pair) for pair in pairs]
    parts = np.array([part for part, _ in dealt])
    medians = np.array([median for _, median in dealt])
    return Heat(rows, float(low), float((high - low) / BINS), parts, medians)


def _is_whole(edges: np.ndarray, counts: np.ndarray) -> bool:
    """Whether edges grow and counts are counts, whoever wrote them."""
    grows = np.isfinite(edges).all() and bool((np.diff(edges) > 0).all())
    return grows and np.isfinite(counts).all() and bool((counts >= 0).all())


def _deal(
    scale: np.ndarray, edges: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, float]:
    below = np.concatenate([[0.0], np.cumsum(counts)])
    if below[-1] == 0:
        return np.zeros(BINS, np.uint16), np.nan
    share = np.diff(np.interp(scale, edges, below / below[-1]))
    # A few values among a million are to be seen all the same.
    parts = np.ceil(share * PARTS - 1e-9).clip(0, PARTS).astype(np.uint16)
    rising = np.flatnonzero(np.diff(below, prepend=-1.0) > 0)
    return parts, float(np.interp(below[-1] / 2, below[rising], edges[rising]))
