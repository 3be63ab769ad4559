"""Checks of a verification spec, computed on recorded runs.

A check answers passed, failed or inconclusive, with the number it saw; never less
than the number. Whether a pass means anything is part of the answer: a check that a
run's setting decides is marked as such.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.ema import ema
from analysis.history import RunHistory
from minigpt.records import InputError

KINDS = ("max_in_window", "ema_gap_to_baseline")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of a spec.

    Attributes:
        code: stable, such as VF001.
        claim: what passes, in words.
        kind: "max_in_window" (the largest value of a column) or
            "ema_gap_to_baseline" (the largest distance of its EMA-50 to that of the
            baseline run).
        column: of the record.
        first: first step of the window.
        last: last step, included; None is the end of the run.
        limit: the threshold.
        strict: whether a value equal to the limit fails.
        relative_tolerance: widens the limit, for values that only rounding moves.
        by_setting: name of a setting ("clip") that makes the check true for any
            run where it is the limit or less.
        unit: of the limit.
    """

    code: str
    claim: str
    kind: str
    column: str
    first: int
    last: int | None
    limit: float
    strict: bool = False
    relative_tolerance: float = 0.0
    by_setting: str | None = None
    unit: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one check says of one run.

    Attributes:
        answer: "passed", "failed" or "inconclusive".
        observed: the number that was compared, None if there was none.
        step: where it was observed.
        reason: why it is inconclusive, or what the answer owes to a setting.
    """

    answer: str
    observed: float | None = None
    step: int | None = None
    reason: str = ""


def check_from_plain(plain: dict[str, Any]) -> Check:
    """One entry of a spec's list.

    Raises:
        InputError: a key is missing, unknown or of the wrong type.
    """
    label = f"check {plain.get('code', '?')}"
    entry = dict(plain)
    window = entry.pop("window", None)
    if not (isinstance(window, list) and len(window) == 2):
        raise InputError(f"{label}: window: expected [first, last], got {window!r}")
    entry["first"], entry["last"] = window
    names = Check.__dataclass_fields__
    for name in names:
        if name not in entry and name in ("code", "claim", "kind", "column", "limit"):
            raise InputError(f"{label}: expected a {name}, found none")
    for name, value in entry.items():
        if name not in names:
            raise InputError(f"{label}: expected keys {', '.join(names)}; got {name!r}")
        if not isinstance(value, _TYPES[str(names[name].type)]):
            raise InputError(
                f"{label}: {name}: expected {names[name].type}, got {value!r}"
            )
    check = Check(**entry)
    if check.kind not in KINDS:
        raise InputError(
            f"{label}: kind: expected one of {', '.join(KINDS)}; got {check.kind!r}"
        )
    return check


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "bool": (bool,),
}


def evaluate(
    check: Check, run: RunHistory, baseline: RunHistory | None = None
) -> Outcome:
    """One check on one run.

    Args:
        check: what to compute.
        run: the run it is about.
        baseline: the run it is compared with, for kinds that compare.

    Raises:
        InputError: the run has no such column.
    """
    end = len(run) - 1 if check.last is None else check.last
    if len(run) <= end or end < check.first:
        reason = f"the record ends at step {len(run) - 1}, the window at {end}"
        return Outcome("inconclusive", reason=reason)
    window = slice(check.first, end + 1)
    values = run.scalar(check.column)
    if check.kind == "ema_gap_to_baseline":
        if baseline is None or len(baseline) <= end:
            reason = f"no baseline that reaches step {end}"
            return Outcome("inconclusive", reason=reason)
        other = ema(baseline.scalar(check.column)[: end + 1])
        values = np.abs(ema(values[: end + 1]) - other)
    values = values[window]
    return _judge(check, run, values)


def _judge(check: Check, run: RunHistory, values: np.ndarray) -> Outcome:
    finite = np.isfinite(values)
    place = int(np.argmax(values)) if finite.all() else int(np.argmin(finite))
    observed, step = float(values[place]), check.first + place
    limit = check.limit * (1 + check.relative_tolerance)
    met = observed < limit if check.strict else observed <= limit
    passed = math.isfinite(observed) and met
    return Outcome(
        "passed" if passed else "failed", observed, step, _setting(check, run, passed)
    )


def _setting(check: Check, run: RunHistory, passed: bool) -> str:
    """What the answer owes to the run's setting and not to its behaviour."""
    if check.by_setting is None:
        return ""
    value = getattr(run.facts, check.by_setting)
    label = f"{check.by_setting} {'null' if value is None else value}"
    if value is not None and value <= check.limit:
        return f"true by construction ({label})" if passed else ""
    return "" if passed else f"by its setting ({label}), not its behaviour"
