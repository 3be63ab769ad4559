"""Faults on purpose: one small file a fault, one YAML of the same name in conf."""

from minigpt.injections.base import Injection, InjectionConfig, OptimizerState
from minigpt.injections.registry import INJECTIONS, build_injection, config_class

__all__ = [
    "INJECTIONS",
    "Injection",
    "InjectionConfig",
    "OptimizerState",
    "build_injection",
    "config_class",
]
