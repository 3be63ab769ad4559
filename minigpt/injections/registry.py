"""The list of faults: name -> config class and behaviour."""

from __future__ import annotations

from minigpt.batches import Dataset
from minigpt.injections.bad_batch import BadBatch, BadBatchConfig
from minigpt.injections.base import Injection, InjectionConfig
from minigpt.injections.none import NoInjection, NoneConfig
from minigpt.injections.rigged_order import RiggedOrder, RiggedOrderConfig
from minigpt.injections.scale import Scale, ScaleConfig
from minigpt.injections.v_corrupt import VCorrupt, VCorruptConfig
from minigpt.records import InputError

INJECTIONS: dict[str, tuple[type[InjectionConfig], type[Injection]]] = {
    "none": (NoneConfig, NoInjection),
    "scale": (ScaleConfig, Scale),
    "bad_batch": (BadBatchConfig, BadBatch),
    "v_corrupt": (VCorruptConfig, VCorrupt),
    "rigged_order": (RiggedOrderConfig, RiggedOrder),
}


def config_class(kind: str) -> type[InjectionConfig]:
    """The config dataclass of a fault.

    Raises:
        InputError: no such fault; lists the choices.
    """
    if kind not in INJECTIONS:
        raise InputError(
            f"injection: expected one of {', '.join(INJECTIONS)}; got {kind!r}"
        )
    return INJECTIONS[kind][0]


def build_injection(
    config: InjectionConfig, step: int, dataset: Dataset, batch_size: int
) -> Injection:
    """The fault's behaviour, with its parameters checked against the data.

    Raises:
        InputError: a parameter that cannot work.
    """
    config_class(config.kind)
    return INJECTIONS[config.kind][1](config, step, dataset, batch_size)
