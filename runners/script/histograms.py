"""A histogram of many values, small enough to be recorded at every step."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from minigpt.records import InputError
from runners.script.values import brief

MAX_BINS = 512
MAX_EDGE = float(np.finfo(np.float32).max) / 2  # what lies beyond is in the last bin


def histogram_of(
    key: str, values: Any, bins: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Counts between equally distant edges from the smallest to the largest value.

    Args:
        key: named in the error.
        values: an array or tensor of any shape, or a sequence of real numbers.
        bins: how many.

    Returns:
        Counts, uint32, shape (bins,); edges, float32, shape (bins + 1,), increasing;
        and how many values were NaN or infinite, which are in no bin. Without a
        finite value the counts are 0.

    Raises:
        InputError: no numbers, no values, or no such number of bins.
    """
    if isinstance(bins, bool) or not isinstance(bins, Integral):
        raise InputError(f"{key}: bins: expected a whole number, got {brief(bins)}")
    if not 1 <= bins <= MAX_BINS:
        raise InputError(f"{key}: bins: expected 1 to {MAX_BINS}, got {bins}")
    numbers = _numbers(key, values)
    finite = np.isfinite(numbers)
    odd = int(numbers.size - finite.sum())
    numbers = numbers[finite] if odd else numbers
    low, high = (numbers.min(), numbers.max()) if numbers.size else (0.0, 1.0)
    edges = _edges(float(low), float(high), int(bins))
    # The outermost edges were rounded to float32 and take in what lies beyond them.
    inner = edges[1:-1].astype(np.float64)
    places = np.searchsorted(inner, numbers, side="right")
    return np.bincount(places, minlength=bins).astype(np.uint32), edges, odd


def _numbers(key: str, values: Any) -> np.ndarray:
    """float64, one-dimensional."""
    if hasattr(values, "detach"):  # a tensor, of whatever device and precision
        values = values.detach().cpu().double().numpy()
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.empty(0, object)  # rows of different lengths
    if array.dtype.kind not in "fiu" or not array.size:
        what = "nothing" if array.size == 0 else f"an array of {array.dtype}"
        raise InputError(f"{key}: expected an array of real numbers, got {what}")
    return array.astype(np.float64).reshape(-1)


def _edges(low: float, high: float, bins: int) -> np.ndarray:
    low, high = np.clip((low, high), -MAX_EDGE, MAX_EDGE).tolist()
    if not low < high:  # one value: a bin of some width around it
        room = max(abs(low) * 1e-3, 1e-6)
        low, high = low - room, high + room
    edges = np.linspace(low, high, bins + 1).astype(np.float32)
    if (np.diff(edges) <= 0).any():  # closer than float32 can tell apart
        for place in range(1, len(edges)):
            least = np.nextafter(edges[place - 1], np.float32(np.inf))
            edges[place] = max(edges[place], least)
    return edges
