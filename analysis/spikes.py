"""The first, small detector: which steps stand out, and which of them are shipped.

It serves the marks of the dashboard and the shipping rule, it sees one step after
another, and it only knows loss and gradient norm. A mark is not a diagnosis.

A value is judged against the median and MAD of the unmarked ones among the previous
100, so that a spike can neither hide the next one nor raise the bar for itself.
Should a level shift for good, marked steps leave too few unmarked ones to judge by
after some 50 steps; the marks then end and the new level becomes the baseline.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from math import isfinite, log

import numpy as np

from analysis.rule import DEFAULT_RULE, RuleParameters

MAD_TO_SIGMA = 1.4826  # of a normal distribution
TINY_NORM = 1e-30  # a norm of 0 counts as this when its logarithm is taken


@dataclass(frozen=True)
class Mark:
    """A step that stands out.

    Attributes:
        step: which.
        reasons: of "nonfinite_loss", "nonfinite_norm", "loss", "norm".
        loss_z: robust z of the loss; None if it was not judged.
        norm_z: robust z of the log norm; None if it was not judged.
    """

    step: int
    reasons: tuple[str, ...]
    loss_z: float | None
    norm_z: float | None


class _Baseline:
    """Unmarked values among the previous ``window`` ones, kept in order."""

    def __init__(self, rule: RuleParameters, floor: float, relative: float) -> None:
        self._rule, self._floor, self._relative = rule, floor, relative
        self._ordered: list[float] = []
        self._recent: deque[float | None] = deque()

    def push(self, value: float | None) -> None:
        """Let time go on by one step; None is a step that was marked."""
        self._recent.append(value)
        if value is not None:
            insort(self._ordered, value)
        if len(self._recent) > self._rule.window:
            oldest = self._recent.popleft()
            if oldest is not None:
                del self._ordered[bisect_left(self._ordered, oldest)]

    def z(self, value: float) -> float | None:
        """Robust z, 0 at or below the median; None without enough history."""
        if len(self._ordered) < self._rule.minimum:
            return None
        center = _median(self._ordered)
        if value <= center:
            return 0.0
        mad = _median(sorted([abs(one - center) for one in self._ordered]))
        floor = max(self._floor, self._relative * abs(center))
        return (value - center) / max(MAD_TO_SIGMA * mad, floor)


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


class StepDetector:
    """Marks steps whose loss or gradient norm leaves the baseline upwards.

    The floors of sigma keep a rounded or constant history from alarming on its last
    digit: no loss less than 0.12 nats, and no norm less than twice, above its median
    is ever marked. While the loss still falls steeply its MAD measures the fall, and
    only a large jump of the loss stands out: about 2 nats around step 300 of a run
    that falls from 6.2 to 1.5 by then, 0.5 at step 500, 0.3 at step 1,000.

    Reference:
        Leys et al. (2013), "Detecting outliers: do not use standard deviation around
        the mean, use absolute deviation around the median".
    """

    def __init__(self, rule: RuleParameters = DEFAULT_RULE) -> None:
        self._rule = rule
        self._loss = _Baseline(rule, rule.loss_floor, rule.loss_relative_floor)
        self._norm = _Baseline(rule, rule.norm_floor, 0.0)
        self._last: int | None = None

    def update(
        self, step: int, loss: float | None, grad_norm: float | None
    ) -> Mark | None:
        """Judge the next step.

        Args:
            step: larger than that of the last call; windows count values.
            loss: raw, nats per token; None if it was not recorded.
            grad_norm: global L2 before clipping; None if it was not recorded.

        Returns:
            The mark, or None for an ordinary step.

        Raises:
            ValueError: the step is not larger than the last one.
        """
        if self._last is not None and step <= self._last:
            raise ValueError(f"step: expected more than {self._last}, found {step}")
        self._last = step
        reasons = []
        loss_z, size, norm_z = None, None, None
        if loss is not None and not isfinite(loss):
            reasons.append("nonfinite_loss")
        elif loss is not None:
            loss_z = self._loss.z(loss)
            if loss_z is not None and loss_z > self._rule.loss_z:
                reasons.append("loss")
        if grad_norm is not None and not isfinite(grad_norm):
            reasons.append("nonfinite_norm")
        elif grad_norm is not None:
            size = log(max(grad_norm, TINY_NORM))
            norm_z = self._norm.z(size)
            if norm_z is not None and norm_z > self._rule.norm_z:
                reasons.append("norm")
        if loss is not None:
            self._loss.push(None if reasons else loss)
        if grad_norm is not None:
            self._norm.push(None if reasons else size)
        return Mark(step, tuple(reasons), loss_z, norm_z) if reasons else None

    def prime(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """Take a step that is known to be ordinary without judging it."""
        self._last = step
        if loss is not None:
            self._loss.push(loss)
        if grad_norm is not None:
            self._norm.push(log(max(grad_norm, TINY_NORM)))


class Onsets:
    """Tells the first mark of an event from those that follow it."""

    def __init__(self, rule: RuleParameters = DEFAULT_RULE) -> None:
        self._quiet = rule.quiet
        self._last: int | None = None

    def is_onset(self, mark: Mark) -> bool:
        """Whether no step was marked in the ``quiet`` ones before this mark."""
        last, self._last = self._last, mark.step
        return last is None or mark.step - last > self._quiet


# -- shipping -------------------------------------------------------------------------


def stride_at(step: int, rule: RuleParameters = DEFAULT_RULE) -> int:
    """The distance of the regular points at ``step``, in steps.

    It doubles with every doubling of the step number, which makes a million steps
    about a thousand points.
    """
    return rule.stride << (step // rule.stride_until).bit_length()


class ShippingRule:
    """Decides step by step, each one once ``lead`` more steps are known.

    Step t is shipped if it is 0, or a multiple of the stride at t, or an occasional
    value was measured at t, or t lies in [onset - lead, onset + lag] of an event, or
    t is the last step of a run that finished. A run that stays NaN is one event with
    one onset, and so does not ship everything.
    """

    def __init__(self, rule: RuleParameters = DEFAULT_RULE) -> None:
        self._rule = rule
        self._detector, self._onsets = StepDetector(rule), Onsets(rule)
        self._events: deque[int] = deque()
        self._undecided: deque[tuple[int, bool]] = deque()
        self._next = 0

    def push(
        self, step: int, loss: float | None, norm: float | None, has_occasional: bool
    ) -> list[int]:
        """Take the next step.

        Args:
            step: 0, 1, 2, ...
            loss: raw, nats per token, None if not recorded.
            norm: global gradient norm before clipping, None if not recorded.
            has_occasional: whether an occasional value was measured at this step.

        Returns:
            Steps that are now decided to be shipped, in increasing order and larger
            than all returned before.

        Raises:
            ValueError: the steps are not 0, 1, 2, ...
        """
        if step != self._next:
            raise ValueError(f"step: expected {self._next}, found {step}")
        self._next += 1
        mark = self._detector.update(step, loss, norm)
        if mark is not None and self._onsets.is_onset(mark):
            self._events.append(step)
        self._undecided.append((step, bool(has_occasional)))
        return self._decide(step - self._rule.lead)

    def finish(self, finished: bool = True) -> list[int]:
        """The record has ended: decide the rest.

        Args:
            finished: whether the run reached its end, whose last step is shipped. One
                that was killed may be resumed, and its last step is then any other.
        """
        if self._undecided and finished:
            last, _ = self._undecided.pop()
            self._undecided.append((last, True))
        return self._decide(self._next)

    def _decide(self, until: int) -> list[int]:
        shipped = []
        while self._undecided and self._undecided[0][0] <= until:
            step, has_occasional = self._undecided.popleft()
            regular = step % stride_at(step, self._rule) == 0
            if regular or has_occasional or self._near_event(step):
                shipped.append(step)
        return shipped

    def _near_event(self, step: int) -> bool:
        while self._events and self._events[0] + self._rule.lag < step:
            self._events.popleft()
        return bool(self._events) and self._events[0] - self._rule.lead <= step


def ship(
    loss: np.ndarray,
    norm: np.ndarray | None,
    occasional: np.ndarray,
    rule: RuleParameters = DEFAULT_RULE,
    finished: bool = True,
) -> np.ndarray:
    """The steps a whole run ships: the streaming rule, from first to last step.

    Args:
        loss: raw loss, nats per token, shape (n,).
        norm: gradient norm before clipping, shape (n,), or None.
        occasional: bool, shape (n,), whether an occasional value was measured.
        rule: the rule's numbers.
        finished: whether the run reached its end; see ``ShippingRule.finish``.

    Returns:
        int64, increasing.
    """
    stream = ShippingRule(rule)
    losses = np.asarray(loss, np.float64).tolist()
    norms = [None] * len(losses) if norm is None else np.asarray(norm, float).tolist()
    masks = np.asarray(occasional, bool).tolist()
    shipped: list[int] = []
    for step, row in enumerate(zip(losses, norms, masks, strict=True)):
        shipped += stream.push(step, *row)
    return np.array(shipped + stream.finish(finished), np.int64)
