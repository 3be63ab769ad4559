"""What one run is: every choice in one dataclass, checked once and hashed.

``runners.schema`` and ``runners.compose`` make it from Hydra's configuration; below
this package nothing knows that Hydra exists.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from minigpt.checkpoint import CheckpointConfig
from minigpt.injections import InjectionConfig, config_class
from minigpt.loaders import LoaderConfig
from minigpt.model import ModelConfig
from minigpt.observer import CadenceConfig
from minigpt.optimizer import AdamWConfig
from minigpt.records import InputError
from minigpt.schedule import ScheduleConfig
from runners.run_names import check_name
from runners.settings import PathsConfig, PrecisionConfig, TrackingConfig

DEFAULT_INJECTION_STEP = 500
DEFAULT_STEPS = 2000
SEED_LIMIT = 2**63  # torch and numpy both take any seed below

# What says how a run is kept, and not what its record contains.
_NOT_IN_HASH = ("name", "experiment", "paths", "tracking", "checkpoint")


@dataclass(kw_only=True)
class RunConfig:
    """Every choice of one run.

    Attributes:
        injection: the fault, an instance of its own config class.
        loader: how rows become batches.
        model: sizes.
        optimizer: AdamW's constants.
        schedule: the declared learning rate.
        precision: number format.
        tracking: where the curves go.
        cadence: how often the expensive columns are measured, steps.
        checkpoint: how often and how many.
        paths: folders.
        name: given name; None lets ``runners.naming`` compose one.
        experiment: the file of conf/experiment this run was made from, if any.
        seed: of the initial weights.
        data_seed: of the data order. None becomes ``seed`` at once, so that it is an
            int in every finished config.
        injection_step: K, 0-based; faults without a step ignore it.
        clip: largest global L2 norm of the gradients; None does not clip.
        steps: steps trained.
        threads: CPU threads.
    """

    injection: InjectionConfig = field(
        default_factory=lambda: config_class("none")(kind="none")
    )
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: AdamWConfig = field(default_factory=AdamWConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    cadence: CadenceConfig = field(default_factory=CadenceConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
    name: str | None = None
    experiment: str | None = None
    seed: int = 42
    data_seed: int | None = None
    injection_step: int = DEFAULT_INJECTION_STEP
    clip: float | None = 1.0
    steps: int = DEFAULT_STEPS
    threads: int = 1

    def __post_init__(self) -> None:
        if self.data_seed is None:
            self.data_seed = self.seed
        for key in ("seed", "data_seed"):
            if not 0 <= getattr(self, key) < SEED_LIMIT:
                raise InputError(
                    f"{key}: expected 0 to 2**63 - 1, got {getattr(self, key)}"
                )
        for key in ("steps", "threads"):
            if getattr(self, key) < 1:
                raise InputError(
                    f"{key}: expected at least 1, got {getattr(self, key)}"
                )
        if self.name is not None:
            check_name(self.name)
        self._check_clip()
        self._check_injection_step()
        _check_finite(to_plain(self))

    def _check_clip(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise InputError(
                f"clip: expected a finite number > 0, or null for no clipping; "
                f"got {self.clip}"
            )

    def _check_injection_step(self) -> None:
        if self.injection.uses_step and not 0 <= self.injection_step < self.steps:
            raise InputError(
                f"injection_step: expected 0 to steps - 1 ({self.steps - 1}) with "
                f"injection={self.injection.kind}, got {self.injection_step}"
            )


def _check_finite(plain: dict[str, Any]) -> None:
    for key, value in leaves(plain):
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key}: expected a finite number, got {value}")


def leaves(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a plain config that is no dict."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def to_plain(config: RunConfig) -> dict[str, Any]:
    """The resolved config as dicts, lists, text and numbers, ready for JSON."""
    return asdict(config)


def config_hash(config: RunConfig) -> str:
    """SHA-256, in hex, of the choices that determine the record.

    Two configs with one hash yield the same record: name, experiment, paths,
    tracking, checkpoint and predictions are left out, and so is ``injection_step``
    where the fault ignores it. 1 and 1.0 are the same number.
    """
    plain = {k: v for k, v in to_plain(config).items() if k not in _NOT_IN_HASH}
    del plain["injection"]["predictions"]
    if not config.injection.uses_step:
        del plain["injection_step"]
    text = json.dumps(
        _canonical(plain), sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
