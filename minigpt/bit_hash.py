"""A fast hash of parameters: any changed bit shows, and so do values that moved."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

CHUNK = 1 << 17  # elements that share one table of weights
_MASK = 2**64 - 1
_odd = np.random.default_rng(0).integers(0, 2**64, CHUNK, dtype=np.uint64)
_odd |= np.uint64(1)
_WEIGHTS, _SIGN_WEIGHTS = _odd[: CHUNK // 2], _odd[CHUNK // 2 :]
_STEP = int(_odd[-1])


def hash_bits(arrays: Iterable[np.ndarray]) -> int:
    """64-bit non-cryptographic hash of the bits of float32 arrays, place by place.

    Sum of the bits, two elements a word, times fixed odd weights. The highest bit
    of a word keeps its value under any odd weight, so that two changed signs could
    cancel: signs are therefore added once more, packed into words of 32.

    Args:
        arrays: one-dimensional, float32, contiguous.

    Reference:
        Lemire and Kaser, "Strongly universal string hashing is fast", 2014
        (the multilinear family; here with fixed odd weights).
    """
    total = 0
    for array in arrays:
        for start in range(0, array.size, CHUNK):
            part = _hash_chunk(array[start : start + CHUNK])
            total = (total * _STEP + part) & _MASK
    return total


def _hash_chunk(values: np.ndarray) -> int:
    missing = -values.size % 32
    if missing:
        values = np.concatenate([values, np.zeros(missing, dtype=np.float32)])
    words = values.view(np.uint64)
    signs = np.packbits(np.signbit(values)).view(np.uint32)
    # Plain loops and not BLAS: integers of numpy, modulo 2^64 without a warning.
    total = np.dot(words, _WEIGHTS[: words.size])
    return int(total) + int(np.dot(signs, _SIGN_WEIGHTS[: signs.size]))
