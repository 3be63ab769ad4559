"""The numbers of a page: packed, compressed and embedded as text."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np

MAX_FLOAT32 = float(np.finfo(np.float32).max)
MIN_FLOAT32 = float(np.finfo(np.float32).tiny)
MAX_WHOLE = 2**53  # up to here a float64 holds every integer


class Payload:
    """Arrays one after another; the page refers to them by their index.

    An array's bytes are stored plane by plane (all lowest bytes, then all second
    ones), which gzip compresses by a further fifth or more.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._index: list[dict[str, Any]] = []

    def floats(self, values: np.ndarray) -> int:
        """Take floats: as float32, or as float64 where that could not hold them."""
        values = np.asarray(values, np.float64)
        size = np.abs(values[np.isfinite(values) & (values != 0)])
        fits = np.all((size >= MIN_FLOAT32) & (size <= MAX_FLOAT32))
        with np.errstate(over="ignore"):  # an inf among the values
            return self._add(values.astype("<f4" if fits else "<f8"))

    def integers(self, values: np.ndarray) -> int:
        """Take integers, in as few bytes as they need.

        Below 0 or from 2**32 on they are stored as float64.

        Raises:
            ValueError: one is beyond 2**53, which a page cannot hold.
        """
        values = np.asarray(values)
        largest, smallest = int(values.max(initial=0)), int(values.min(initial=0))
        if smallest < -MAX_WHOLE or largest > MAX_WHOLE:
            raise ValueError(
                f"integers: expected -2**53 to 2**53, found {smallest} to {largest}"
            )
        if smallest < 0 or largest >= 2**32:
            return self._add(values.astype("<f8"))
        kind = "<u1" if largest < 2**8 else "<u2" if largest < 2**16 else "<u4"
        return self._add(values.astype(kind))

    def _add(self, array: np.ndarray) -> int:
        planes = array.view(np.uint8).reshape(len(array), array.itemsize).T
        self._parts.append(planes.tobytes())
        self._index.append({"type": array.dtype.str[1:], "length": len(array)})
        return len(self._index) - 1

    @property
    def index(self) -> list[dict[str, Any]]:
        """Type and length of each array, in order."""
        return self._index

    def encoded(self) -> str:
        """Everything, compressed, as base64."""
        packed = gzip.compress(b"".join(self._parts), compresslevel=5, mtime=0)
        return base64.b64encode(packed).decode("ascii")
