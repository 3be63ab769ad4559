"""The frozen, versioned numbers of the step detector and of the shipping rule."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from minigpt.records import InputError

_AT_LEAST_ONE = ("version", "minimum", "quiet", "lead", "stride", "stride_until")


@dataclass(frozen=True)
class RuleParameters:
    """The frozen numbers of the detector and of the shipping rule.

    A change of any default is a new ``version``, or two runs shipped by different
    rules would look the same. The thresholds stand clear of health: in 24,000 healthy
    steps of the default model (12 seeds, 2,000 steps each) the largest z of the loss
    was 5.8; of the log norm one step reached 9.1 and no other more than 6.3. Batch
    losses are means over some sixty tokens and so have lighter tails than gradient
    norms, which is why the loss may have the lower threshold.

    Attributes:
        version: of this set of numbers.
        window: how many previous steps a baseline looks at.
        minimum: unmarked steps among them without which only NaN and inf are marked.
        loss_z: robust z of the raw loss above which a step is marked.
        norm_z: the same, of the logarithm of the gradient norm.
        loss_floor: least sigma of the loss, in nats.
        loss_relative_floor: least sigma of the loss, as a part of its median.
        norm_floor: least sigma of the log norm.
        quiet: unmarked steps before a mark that make it the onset of an event.
        lead: steps before an onset that are shipped, at least 1.
        lag: steps after an onset that are shipped.
        stride: every so many steps one is shipped, whatever happens.
        stride_until: the step at which the stride first doubles; then at twice
            that, and so on.
    """

    version: int = 1
    window: int = 100
    minimum: int = 50
    loss_z: float = 7.0
    norm_z: float = 8.0
    loss_floor: float = 0.02
    loss_relative_floor: float = 0.005
    norm_floor: float = 0.1
    quiet: int = 50
    lead: int = 10
    lag: int = 50
    stride: int = 10
    stride_until: int = 2000

    def __post_init__(self) -> None:
        for one in fields(self):
            least = 1 if one.name in _AT_LEAST_ONE else 0
            value = getattr(self, one.name)
            if not value >= least:
                raise InputError(
                    f"rule {one.name}: expected at least {least}, found {value}"
                )
        if self.window < self.minimum:
            raise InputError(
                f"rule window: expected at least the minimum of {self.minimum}, "
                f"found {self.window}"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain numbers by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RuleParameters:
        """The inverse of ``to_json``.

        Raises:
            InputError: a number is missing, unknown or of the wrong type.
        """
        names = {one.name for one in fields(cls)}
        if not isinstance(data, dict) or data.keys() != names:
            found = sorted(data) if isinstance(data, dict) else data
            raise InputError(f"rule: expected {sorted(names)}, found {found!r:.300}")
        for name, value in data.items():
            kinds = int if type(getattr(cls, name)) is int else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise InputError(f"rule {name}: expected a number, found {value!r:.40}")
        return cls(**data)


DEFAULT_RULE = RuleParameters()
