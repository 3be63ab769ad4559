"""Watching anybody's module and optimizer, through hooks only.

The gradients before clipping are measured when the backward pass ends, the rest
around ``optimizer.step``; the training loop is not touched. With gradient
accumulation the last backward pass before the step is the one that counts.

A cycle is what leads to one update and what follows it: it begins with the first
forward pass of the training, or the first backward pass, or the update itself, after
the update before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minigpt.module_reader import ModuleReader
from minigpt.observer import Observer, UpdateFacts

# Two ways to add the squares of a tensor differ by less; a clip by so little is none.
ROUNDING = 1e-5
TINY = 1e-15  # a norm whose square leaves no trace in a float32 state


class Watch:
    """The observer attached to a foreign module and optimizer.

    Attributes:
        columns: names of the values of ``row()``.
        norm_preclip: global L2 norm when the last backward pass ended.
        norm_postclip: the same when ``optimizer.step`` began; of a step that was
            given a closure, when it ended.
        clip_coef: the factor by which all gradients were scaled between the two; NaN
            if they were not scaled as a whole.
        went_back: whether the end of a backward pass was seen before the last update;
            without it nothing is known of the gradients before clipping, which are NaN.
        rate: learning rate of the first group of parameters at the update.
        nonfinite_grads: NaN or infinite elements of those gradients before clipping.
        update: figures of the last update, or None before the first.
        step_counter: the optimizer's own count after it; NaN if it keeps none.
        param_hash: fast hash of all watched parameters after it.

    Args:
        model: the module; its forward output must hold a tensor with a gradient.
        optimizer: what steps it.
        sites: activation sites; default chosen from the module's structure.
        on_begin: called when a cycle may begin: the first call after an update does.
        on_update: called after each update, once its figures are here.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sites: list[str] | None = None,
        on_begin: Callable[[], None] = lambda: None,
        on_update: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_begin, self._on_update = on_begin, on_update
        self._optimizer = optimizer
        self.reader = ModuleReader(model, optimizer)
        self._observer = Observer(model, self.reader, sites)
        self.columns = self._observer.columns
        self.sites = self._observer.activations.sites
        self.norm_preclip = self.norm_postclip = self.step_counter = math.nan
        self.clip_coef = self.rate = math.nan
        self._before = np.full(len(self.reader.names), np.nan)
        self.went_back, self._backward = False, False
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
            if module.training:
                self._on_begin()
            tensor.register_hook(self._backward_began)

    def _backward_began(self, gradient: Tensor) -> None:
        self._on_begin()
        # The engine runs queued callbacks once the whole graph is done; this is how
        # DistributedDataParallel learns that every gradient is there.
        torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    def _backward_ended(self) -> None:
        self.norm_preclip = self._observer.after_backward()
        self._before, self._backward = self._observer.gradient_norms, True
        finite = math.isfinite(self.norm_preclip)
        self.nonfinite_grads = 0 if finite else self.reader.nonfinite_gradients()

    def _before_step(self, optimizer: Any, args: tuple, kwargs: dict) -> None:
        self._on_begin()
        # A closure holds forward and backward pass: there is nothing to measure yet.
        # The optimizer itself is the first argument.
        self._closure = (*args[1:], kwargs.get("closure"))[0] is not None
        if not self._closure:
            self._measure_clip()
        self._observer.before_update()

    def _after_step(self, *ignored: object) -> None:
        if self._closure:
            self._measure_clip()
        self.rate = float(self._optimizer.param_groups[0]["lr"])
        self.update = self._observer.after_update()
        self.step_counter = self.reader.step_counter()
        self.param_hash = self.reader.parameter_hash()
        self._on_update()

    def _measure_clip(self) -> None:
        self.went_back, self._backward = self._backward, False
        if not self.went_back:  # those of an earlier update would pass for this one's
            self._before = self._observer.without_backward()
            self.norm_preclip = math.nan
        norms = self.reader.gradient_norms().astype(np.float64)
        self.norm_postclip = math.sqrt(norms @ norms)
        self.clip_coef = common_factor(self._before, norms)

    def row(self) -> np.ndarray:
        """This step's values, float32, in the order of ``columns``."""
        return self._observer.row()

    def close(self) -> None:
        """Take every hook off the model and the optimizer."""
        for handle in self._handles:
            handle.remove()
        self._observer.close()


def common_factor(before: np.ndarray, after: np.ndarray) -> float:
    """The factor between norms of gradients before and after clipping.

    Args:
        before: float64, shape (tensors,).
        after: the same tensors'.

    Returns:
        1.0 where they are equal up to rounding; NaN if the tensors were scaled by
        different factors, or one of the norms is not finite.
    """
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        return math.nan
    size = before @ before
    factor = math.sqrt((after @ after) / size) if size > 0 else 1.0
    if np.any(np.abs(after - factor * before) > ROUNDING * factor * before + TINY):
        return math.nan
    return 1.0 if abs(factor - 1) <= ROUNDING else factor


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
