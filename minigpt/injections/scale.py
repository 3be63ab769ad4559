"""Injection A: every gradient times a factor at K, before clipping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.injections.base import Injection, InjectionConfig
from minigpt.records import InputError


@dataclass(kw_only=True)
class ScaleConfig(InjectionConfig):
    """Attributes: factor, what every gradient is multiplied by at K."""

    factor: float = 50.0

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise InputError(f"injection.factor: expected > 0, got {self.factor}")


class Scale(Injection):
    """Gradients times ``factor`` at step K only."""

    config: ScaleConfig

    def on_gradients(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        """Multiply in place at K."""
        if step == self.step:
            torch._foreach_mul_(list(gradients.values()), self.config.factor)
