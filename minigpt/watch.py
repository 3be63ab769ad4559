"""Watching anybody's module and optimizer, through hooks only.

The gradients before clipping are measured when the backward pass ends, the rest
around ``optimizer.step``; the training loop is not touched. With gradient
accumulation the last backward pass before the step is the one that counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minigpt.bit_hash import hash_bits
from minigpt.flat import FlatLayout
from minigpt.observer import Observer, UpdateFacts
from minigpt.records import InputError

_NOTHING: dict[str, Any] = {}  # the state of a parameter that was never stepped


class ModuleReader:
    """Reads the trainable parameters of a module and an optimizer's state.

    Args:
        model: any module; parameters with ``requires_grad`` are read.
        optimizer: its optimizer; ``exp_avg`` and ``exp_avg_sq`` are read if there.

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
        self._layout = FlatLayout({name: tuple(p.shape) for name, p in named})
        self._found = [_NOTHING] * len(named)
        self._now, self._kept, self._state = (_Gathered(self._layout) for _ in "123")

    def gradient_squares(self) -> np.ndarray:
        """See ``minigpt.observer.TensorReader``."""
        return self._layout.squares(
            self._state.gather([p.grad for p in self._parameters])
        )

    def gradient_norm(self) -> float:
        """Global L2 norm of the gradients as they are now, without the parts."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if not gradients:
            return 0.0
        norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
        return torch.stack(norms).norm().item()

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


class Watch:
    """The observer attached to a foreign module and optimizer.

    Attributes:
        columns: names of the values of ``row()``.
        norm_preclip: global L2 norm when the last backward pass ended.
        norm_postclip: the same when ``optimizer.step`` began.
        nonfinite_grads: NaN or infinite elements of those gradients before clipping.
        update: figures of the last update, or None before the first.
        step_counter: the optimizer's own count after it; NaN if it keeps none.
        param_hash: fast hash of all watched parameters after it.

    Args:
        model: the module; its forward output must hold a tensor with a gradient.
        optimizer: what steps it.
        sites: activation sites; default chosen from the module's structure.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sites: list[str] | None = None,
    ) -> None:
        self.reader = ModuleReader(model, optimizer)
        self._observer = Observer(model, self.reader, sites)
        self.columns = self._observer.columns
        self.norm_preclip = self.norm_postclip = self.step_counter = math.nan
        self.nonfinite_grads = self.param_hash = 0
        self.update: UpdateFacts | None = None
        self._handles = [
            model.register_forward_hook(self._arm),
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def _arm(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Ask for a call at the end of the backward pass through this output."""
        tensor = _first_differentiable(output)
        if tensor is not None:
            tensor.register_hook(self._backward_began)

    def _backward_began(self, gradient: Tensor) -> None:
        # The engine runs queued callbacks once the whole graph is done; this is how
        # DistributedDataParallel learns that every gradient is there.
        torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    def _backward_ended(self) -> None:
        self.norm_preclip = self._observer.after_backward()
        finite = math.isfinite(self.norm_preclip)
        self.nonfinite_grads = 0 if finite else self.reader.nonfinite_gradients()

    def _before_step(self, *ignored: object) -> None:
        self.norm_postclip = self.reader.gradient_norm()
        self._observer.before_update()

    def _after_step(self, *ignored: object) -> None:
        self.update = self._observer.after_update()
        self.step_counter = self.reader.step_counter()
        self.param_hash = self.reader.parameter_hash()

    def row(self) -> np.ndarray:
        """This step's values, float32, in the order of ``columns``."""
        return self._observer.row()

    def close(self) -> None:
        """Take every hook off the model and the optimizer."""
        for handle in self._handles:
            handle.remove()
        self._observer.close()


def _first_differentiable(output: Any, depth: int = 4) -> Tensor | None:
    """The first tensor with a gradient in a tensor, list, tuple, dict or dataclass."""
    if isinstance(output, Tensor):
        return output if output.requires_grad else None
    if depth == 0:  # nested deeper than any model's output, or in itself
        return None
    if isinstance(output, dict):
        parts = list(output.values())
    elif isinstance(output, list | tuple):
        parts = list(output)
    else:
        parts = list(vars(output).values()) if hasattr(output, "__dict__") else []
    found = (_first_differentiable(part, depth - 1) for part in parts)
    return next((tensor for tensor in found if tensor is not None), None)
