"""A model's tensors as views of flat buffers, so that one pass measures them all.

Each tensor starts at a multiple of ``LANE`` elements, the gaps hold zeros for
ever (their gradient is zero). Reductions run over lanes of 256 in float32 and over
the lanes in float64: exact enough for the optimizer accounting, and free of the
thread pool of a BLAS, whose splitting would change the last bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

LANE = 256


class FlatLayout:
    """Where each of several tensors lies in a flat buffer.

    Args:
        shapes: name -> shape, in the order of storage.

    Attributes:
        names: in the order of storage.
        shapes: name -> shape.
        size: elements of a buffer, gaps included.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.names = list(shapes)
        self.shapes = dict(shapes)
        self._slices: dict[str, slice] = {}
        self.size = 0
        for name, shape in shapes.items():
            count = math.prod(shape)
            self._slices[name] = slice(self.size, self.size + count)
            self.size += -(-count // LANE) * LANE
        starts = [self._slices[name].start // LANE for name in self.names]
        self._starts = np.array(starts, dtype=np.intp)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Name -> its part of a flat buffer, in the tensor's shape."""
        return {
            name: flat[self._slices[name]].view(self.shapes[name])
            for name in self.names
        }

    def squares(self, flat: np.ndarray) -> np.ndarray:
        """Sum of squares per tensor, float64, shape (len(names),).

        Infinite where the squares of a lane exceed float32 (elements near 1e19).
        """
        lanes = flat.reshape(-1, LANE)
        with np.errstate(over="ignore"):
            squares = np.vecdot(lanes, lanes)
        return np.add.reduceat(squares, self._starts, dtype=np.float64)

    def sums(self, flat: np.ndarray) -> np.ndarray:
        """Sum of elements per tensor, float64, shape (len(names),).

        Infinite where the sum of a lane exceeds float32.
        """
        with np.errstate(over="ignore"):
            lanes = np.vecdot(flat.reshape(-1, LANE), _ONES)
        return np.add.reduceat(lanes, self._starts, dtype=np.float64)


_ONES = np.ones(LANE, dtype=np.float32)


class FlatParameters(FlatLayout):
    """Parameters and gradients of a model, moved into two flat buffers.

    Matrices come first: they are the part that weight decay applies to.

    Attributes:
        values: float32 tensor of all parameters; the model's are views of it.
        gradients: float32 tensor of all gradients; the model's are views of it.
        n_decayed: how many leading elements belong to matrices.
    """

    def __init__(self, model: nn.Module) -> None:
        named = dict(model.named_parameters())
        matrices = [name for name, p in named.items() if p.dim() >= 2]
        others = [name for name, p in named.items() if p.dim() < 2]
        super().__init__({n: tuple(named[n].shape) for n in matrices + others})
        self.n_decayed = self._slices[others[0]].start if others else self.size
        self.values = torch.zeros(self.size)
        self.gradients = torch.zeros(self.size)
        gradients = self.views(self.gradients)
        for name, view in self.views(self.values).items():
            view.copy_(named[name].data)
            named[name].data = view
            named[name].grad = gradients[name]
