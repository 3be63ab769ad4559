"""No fault: the control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.injections.base import Injection, InjectionConfig


@dataclass(kw_only=True)
class NoneConfig(InjectionConfig):
    """A healthy run; ``injection_step`` is ignored."""

    uses_step: ClassVar[bool] = False


class NoInjection(Injection):
    """Every seam as it is."""
