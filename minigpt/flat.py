"""A model's tensors as views of flat buffers, so that one pass measures them all.

Each tensor starts at a multiple of ``LANE`` elements, the gaps hold zeros for
ever (their gradient is zero). Reductions run over lanes of 64 in float32 and over
the lanes in float64: exact enough for the optimizer accounting, and free of the
thread pool of a BLAS, whose splitting would change the last bits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

LANE = 64


class FlatParameters:
    """Parameters and gradients of a model, moved into two flat buffers.

    Matrices come first: they are the part that weight decay applies to.

    Attributes:
        names: parameter names in the order of storage.
        values: float32 tensor of all parameters; the model's are views of it.
        gradients: float32 tensor of all gradients; the model's are views of it.
        n_decayed: how many leading elements belong to matrices.
    """

    def __init__(self, model: nn.Module) -> None:
        named = dict(model.named_parameters())
        matrices = [name for name, p in named.items() if p.dim() >= 2]
        others = [name for name, p in named.items() if p.dim() < 2]
        self.names = matrices + others
        self.shapes = {name: tuple(named[name].shape) for name in self.names}
        self._slices: dict[str, slice] = {}
        size = 0
        for name in self.names:
            count = named[name].numel()
            self._slices[name] = slice(size, size + count)
            size += -(-count // LANE) * LANE
            if name in matrices:
                self.n_decayed = size
        self._starts = np.array(
            [self._slices[name].start // LANE for name in self.names], dtype=np.intp
        )
        self.values = torch.zeros(size)
        self.gradients = torch.zeros(size)
        for name, parameter in named.items():
            view = self.values[self._slices[name]].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.gradients[self._slices[name]].view(parameter.shape)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Parameter name -> its part of a flat buffer, in the parameter's shape."""
        return {
            name: flat[self._slices[name]].view(self.shapes[name])
            for name in self.names
        }

    def squares(self, flat: np.ndarray) -> np.ndarray:
        """Sum of squares per tensor, float64, shape (len(names),)."""
        lanes = flat.reshape(-1, LANE)
        return np.add.reduceat(np.vecdot(lanes, lanes), self._starts, dtype=np.float64)

    def sums(self, flat: np.ndarray) -> np.ndarray:
        """Sum of elements per tensor, float64, shape (len(names),)."""
        lanes = np.vecdot(flat.reshape(-1, LANE), _ONES)
        return np.add.reduceat(lanes, self._starts, dtype=np.float64)


_ONES = np.ones(LANE, dtype=np.float32)
