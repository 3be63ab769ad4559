"""A fast hash of parameters: any changed bit shows, and so do values that moved."""

from __future__ import annotations

import numpy as np
import xxhash


def hash_bits(values: np.ndarray) -> int:
    """64-bit non-cryptographic hash of the bits of an array, place by place.

    The same in every process and on every machine of the same byte order.

    Args:
        values: contiguous.

    Reference:
        XXH3, 64 bits, seed 0: https://github.com/Cyan4973/xxHash
    """
    return xxhash.xxh3_64_intdigest(values)
