"""Injection C: the second moment of one parameter times a factor at K."""

from __future__ import annotations

from dataclasses import dataclass

from minigpt.injections.base import Injection, InjectionConfig, OptimizerState
from minigpt.records import InputError


@dataclass(kw_only=True)
class VCorruptConfig(InjectionConfig):
    """Second-moment corruption.

    Attributes:
        factor: what ``exp_avg_sq`` is multiplied by.
        target: the parameter whose state is hit.
    """

    factor: float = 100.0
    target: str = "lm_head.bias"

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise InputError(f"injection.factor: expected > 0, got {self.factor}")


class VCorrupt(Injection):
    """``exp_avg_sq[target] *= factor`` once, after the update of step K."""

    config: VCorruptConfig

    def check_tensors(self, names: list[str]) -> None:
        """The target must be a parameter of the model."""
        if self.config.target not in names:
            raise InputError(
                f"injection.target: expected one of {', '.join(names)}; "
                f"got {self.config.target!r}"
            )

    def on_optimizer_state(self, step: int, state: OptimizerState) -> None:
        """Multiply in place at K; the damage then decays with beta2."""
        if step == self.step:
            state.exp_avg_sq[self.config.target].mul_(self.config.factor)
