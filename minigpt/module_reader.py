"""Reads the tensors of anybody's module and the state of its optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minigpt.bit_hash import hash_bits
from minigpt.flat import FlatLayout
from minigpt.records import InputError

_NOTHING: dict[str, Any] = {}  # the state of a parameter that was never stepped


class ModuleReader:
    """Reads the trainable parameters of a module and an optimizer's state.

    Args:
        model: any module; parameters with ``requires_grad`` are read.
        optimizer: its optimizer; ``exp_avg`` and ``exp_avg_sq`` are read if there.

    Attributes:
        names: of the parameters that are read.
        shapes: of the same.

    Raises:
        InputError: the module has nothing to train.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise InputError(
                "model: expected at least one parameter with requires_grad, found none"
            )
        self.names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._optimizer = optimizer
        self.shapes = {name: tuple(p.shape) for name, p in named}
        self._layout = FlatLayout(self.shapes)
        self._found = [_NOTHING] * len(named)
        self._now, self._kept, self._state = (_Gathered(self._layout) for _ in "123")

    def gradient_squares(self) -> np.ndarray:
        """See ``minigpt.observer.TensorReader``."""
        return self._layout.squares(
            self._state.gather([p.grad for p in self._parameters])
        )

    def gradient_norms(self) -> np.ndarray:
        """L2 of each gradient as it is now: float32, 0 without a gradient."""
        found = np.zeros(len(self._parameters), np.float32)
        places = [i for i, p in enumerate(self._parameters) if p.grad is not None]
        if places:
            gradients = [self._parameters[place].grad for place in places]
            norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
            found[places] = torch.stack(norms).cpu().numpy()
        return found

    def nonfinite_gradients(self) -> int:
        """See ``minigpt.observer.TensorReader``."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return sum(int((~g.isfinite()).sum()) for g in gradients)

    def keep_parameters(self) -> None:
        """See ``minigpt.observer.TensorReader``."""
        self._kept.gather(self._parameters)

    def update_squares(self) -> np.ndarray:
        """See ``minigpt.observer.TensorReader``."""
        now, kept = self._now.array, self._kept.array
        with np.errstate(over="ignore", invalid="ignore"):  # inf - inf is NaN
            np.subtract(now, kept, out=kept)
        return self._layout.squares(kept)

    def parameter_squares(self) -> np.ndarray:
        """See ``minigpt.observer.TensorReader``."""
        return self._layout.squares(self._now.gather(self._parameters))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """See ``minigpt.observer.TensorReader``."""
        # Each look-up by a tensor takes its time; the counter needs them as well.
        states = self._optimizer.state
        self._found = [states.get(p, _NOTHING) for p in self._parameters]
        return (
            self._measured("exp_avg", self._layout.squares),
            self._measured("exp_avg_sq", self._layout.sums),
        )

    def parameter_hash(self) -> int:
        """See ``minigpt.observer.TensorReader``."""
        return hash_bits(self._now.array)

    def step_counter(self) -> float:
        """The optimizer's own count of updates as ``moments`` found it.

        NaN if it keeps none.
        """
        counts = (float(state["step"]) for state in self._found if "step" in state)
        return max(counts, default=math.nan)

    def _measured(
        self, key: str, measure: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        tensors = [state.get(key) for state in self._found]
        values = measure(self._state.gather(tensors))
        for place, tensor in enumerate(tensors):
            if tensor is None:
                values[place] = np.nan
        return values


class _Gathered:
    """A flat float32 copy, on the CPU, of tensors wherever they are."""

    def __init__(self, layout: FlatLayout) -> None:
        self._flat = torch.zeros(layout.size)
        self.array = self._flat.numpy()
        self._views = list(layout.views(self._flat).values())

    @torch.no_grad()
    def gather(self, tensors: Sequence[Tensor | None]) -> np.ndarray:
        """Copy the tensors in; where there is none the copy is zero."""
        views = self._views
        if any(tensor is None for tensor in tensors):
            self._flat.zero_()
            pairs = zip(views, tensors, strict=True)
            there = [(view, tensor) for view, tensor in pairs if tensor is not None]
            views, tensors = [v for v, _ in there], [t for _, t in there]
        if tensors:
            torch._foreach_copy_(views, tensors)
        return self.array
