"""The observer: per-tensor and activation columns of any module and optimizer.

Its three calls stand at the three places of a step: ``after_backward`` (the
gradients before clipping), ``before_update`` and ``after_update``. A reader knows
how to get at the tensors: ``minigpt.flat_reader`` for this project's flat buffers,
``minigpt.module_reader.ModuleReader`` for anybody's module and optimizer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from torch import nn

from minigpt.activations import ActivationMeter
from minigpt.records import ACT_MAX_ABS, ACT_MEAN_ABS, PER_TENSOR, InputError


@dataclass(kw_only=True)
class CadenceConfig:
    """How often the expensive columns are measured, in steps; 0 is never.

    Attributes:
        validation: ``val/loss`` and ``val/loss_causal``.
        spectral: ``spectral_norm/<matrix>``.
        probe: ``probe/future_leak``.
    """

    validation: int = 100
    spectral: int = 100
    probe: int = 100

    def __post_init__(self) -> None:
        for name in ("validation", "spectral", "probe"):
            if getattr(self, name) < 0:
                raise InputError(
                    f"cadence.{name}: expected 0 (never) or more steps, "
                    f"got {getattr(self, name)}"
                )


class TensorReader(Protocol):
    """How to measure tensors; every array is float64, one entry a name."""

    names: list[str]

    def gradient_squares(self) -> np.ndarray:
        """Squared L2 of each gradient as it is now; 0 without a gradient."""

    def nonfinite_gradients(self) -> int:
        """Gradient elements that are NaN or infinite."""

    def keep_parameters(self) -> None:
        """Remember the parameters before the update."""

    def update_squares(self) -> np.ndarray:
        """Squared L2 of each parameter's change since ``keep_parameters``.

        Called once a step, after ``parameter_squares``.
        """

    def parameter_squares(self) -> np.ndarray:
        """Squared L2 of each parameter as it is now."""

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Squared L2 of each ``exp_avg`` and sum of each ``exp_avg_sq``.

        NaN for a tensor without that state.
        """

    def parameter_hash(self) -> int:
        """Fast 64-bit hash of all parameters' bits, position by position.

        Called once a step, after ``parameter_squares``.
        """


class UpdateFacts(NamedTuple):
    """Global figures of one update."""

    update_norm: float
    param_norm: float
    relative_update: float  # update norm / parameter norm before it


class Observer:
    """Fills one float32 row a step with every per-tensor and activation column.

    Args:
        model: the module whose activations are measured.
        reader: the access to its tensors.
        sites: activation sites; default chosen from the module's structure.
    """

    def __init__(
        self, model: nn.Module, reader: TensorReader, sites: list[str] | None = None
    ) -> None:
        self.activations = ActivationMeter(model, sites)
        self._reader = reader
        count = len(reader.names)
        self.columns = tuple(
            f"{prefix}{name}" for prefix in PER_TENSOR for name in reader.names
        ) + tuple(
            f"{prefix}{site or 'model'}"
            for prefix in (ACT_MEAN_ABS, ACT_MAX_ABS)
            for site in self.activations.sites
        )
        self._row = np.full(len(self.columns), np.nan, dtype=np.float32)
        # gradients, parameters, updates, first moments: squares; second moments: sums
        self._measured = np.full((5, count), np.nan)
        self._norms = slice(0, 4 * count)
        self._sums = slice(4 * count, 5 * count)
        self._sites = slice(5 * count, None)
        self.resync()

    def resync(self) -> None:
        """Take the parameters as they are now for the state before an update."""
        self._param_norm = math.sqrt(self._reader.parameter_squares().sum())

    def after_backward(self) -> float:
        """Measure gradients; returns their global L2 norm before clipping."""
        squares = self._reader.gradient_squares()
        self._measured[0] = squares
        return math.sqrt(squares.sum())

    def without_backward(self) -> np.ndarray:
        """No gradient was measured for this step; ``gradient_norms``, all NaN."""
        self._measured[0] = np.nan
        return self.gradient_norms

    @property
    def gradient_norms(self) -> np.ndarray:
        """L2 of each gradient as ``after_backward`` found it, float64."""
        return np.sqrt(self._measured[0])

    def before_update(self) -> None:
        """Remember the parameters."""
        self._reader.keep_parameters()

    def after_update(self) -> UpdateFacts:
        """Measure parameters, their change and the optimizer's state."""
        reader, row, measured = self._reader, self._row, self._measured
        measured[1] = parameters = reader.parameter_squares()
        measured[2] = updates = reader.update_squares()
        measured[3], measured[4] = reader.moments()
        with np.errstate(over="ignore"):  # a norm beyond float32 is recorded as inf
            row[self._norms] = np.sqrt(measured[:4]).reshape(-1)
            row[self._sums] = measured[4]
        row[self._sites] = self.activations.values
        before, update = self._param_norm, math.sqrt(updates.sum())
        self._param_norm = math.sqrt(parameters.sum())
        relative = update / before if before > 0 else math.nan
        return UpdateFacts(update, self._param_norm, relative)

    def row(self) -> np.ndarray:
        """A copy of this step's values, float32, in the order of ``columns``."""
        return self._row.copy()

    def close(self) -> None:
        """Leave the model as it was."""
        self.activations.close()
