"""A fast hash of parameters: any changed bit shows, and so do values that moved."""

from __future__ import annotations

from functools import cache

import numpy as np

ROWS = 16  # few and long, so that numpy's inner loops are long
SHIFT = 29  # not 32: the signs of a word's two elements must not meet


def hash_bits(values: np.ndarray) -> int:
    """64-bit non-cryptographic hash of the bits of an array, place by place.

    The words of two elements stand in a table. A changed bit changes the sum of its
    row and the XOR of its column; odd weights keep rows and columns apart. The
    highest bit of a word keeps its value under any odd weight, so that two changed
    signs could cancel: it is first folded onto a lower one.

    Args:
        values: float32, one-dimensional, contiguous.

    Reference:
        Lemire and Kaser, "Strongly universal string hashing is fast", 2014
        (the multilinear family; here with fixed odd weights).
    """
    missing = -values.size % (2 * ROWS)
    if missing:
        values = np.concatenate([values, np.zeros(missing, dtype=np.float32)])
    words = values.view(np.uint64).reshape(ROWS, -1)
    rows, columns = np.add.reduce(words, axis=1), np.bitwise_xor.reduce(words, axis=0)
    marks = np.concatenate([rows, columns])
    marks ^= marks >> np.uint64(SHIFT)
    # A plain loop and not BLAS: integers of numpy, modulo 2^64 without a warning.
    return int(np.dot(marks, _weights(marks.size)))


@cache
def _weights(count: int) -> np.ndarray:
    draw = np.random.default_rng(0).integers(0, 2**64, count, dtype=np.uint64)
    return draw | np.uint64(1)
