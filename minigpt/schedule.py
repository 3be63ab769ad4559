"""Learning rate of step t: linear warmup, then a cosine to the floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minigpt.records import InputError


@dataclass(kw_only=True)
class ScheduleConfig:
    """The declared schedule.

    Attributes:
        kind: "cosine", the only one so far.
        lr_max: the peak, reached at the last warmup step.
        lr_min: the floor, held from ``total_steps`` on.
        warmup_steps: length of the linear warmup; 0 starts at the peak.
        total_steps: where the cosine ends. A run may stop earlier (``steps``)
            without changing any step before.
    """

    kind: str = "cosine"
    lr_max: float = 3e-4
    lr_min: float = 3e-5
    warmup_steps: int = 100
    total_steps: int = 2000

    def __post_init__(self) -> None:
        if self.kind != "cosine":
            raise InputError(f"schedule.kind: expected 'cosine', got {self.kind!r}")
        if not 0 < self.lr_max < math.inf:
            raise InputError(
                f"schedule.lr_max: expected > 0 and finite, got {self.lr_max}"
            )
        if not 0 <= self.lr_min <= self.lr_max:
            raise InputError(
                f"schedule.lr_min: expected 0 to lr_max ({self.lr_max}), "
                f"got {self.lr_min}"
            )
        if not 0 <= self.warmup_steps < self.total_steps:
            raise InputError(
                f"schedule.warmup_steps: expected 0 to total_steps - 1 "
                f"({self.total_steps - 1}), got {self.warmup_steps}"
            )


def declared_lr(config: ScheduleConfig, step: int) -> float:
    """The learning rate that the update of ``step`` (0-based) should use.

    Warmup: ``lr_max * (step + 1) / warmup_steps``, so the first update is not
    wasted on a rate of zero. Cosine as in SGDR without restarts.

    Reference:
        Loshchilov and Hutter, "SGDR", 2017, equation 5.
    """
    if step < config.warmup_steps:
        return config.lr_max * (step + 1) / config.warmup_steps
    span = config.total_steps - config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / span)
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.lr_min + (config.lr_max - config.lr_min) * cosine
