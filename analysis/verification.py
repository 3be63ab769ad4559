"""Checks of a verification spec, computed on recorded runs.

A check answers passed, failed or inconclusive, with the number it saw; never less
than the number. Whether a pass means anything is part of the answer: a check that a
run's setting decides is marked as such.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import MISSING, dataclass
from typing import Any

import numpy as np

from analysis.ema import ema
from analysis.history import RunHistory
from minigpt.records import InputError

COMPARING = ("ema_gap_to_baseline",)  # kinds that need a baseline run
KINDS = ("max_in_window", *COMPARING)
SETTINGS = ("clip",)  # facts of a run that may decide a check by construction


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


def check_from_plain(plain: Any) -> Check:
    """One entry of a spec's list.

    Raises:
        InputError: a key is missing, unknown, of the wrong type or impossible.
    """
    if not isinstance(plain, dict):
        raise InputError(f"checks: expected keys and values, got {brief(plain)}")
    label = f"check {brief(plain.get('code', '?'))}"
    entry = dict(plain)
    window = entry.pop("window", None)
    if not (isinstance(window, list) and len(window) == 2):
        raise InputError(
            f"{label}: window: expected [first, last], got {brief(window)}"
        )
    declared = Check.__dataclass_fields__
    keys = [name for name in declared if name not in ("first", "last")]
    for name in entry:
        if name not in keys:
            expected = ", ".join([*keys, "window"])
            raise InputError(f"{label}: expected keys {expected}; got {brief(name)}")
    for name in keys:
        if name not in entry and declared[name].default is MISSING:
            raise InputError(f"{label}: expected a {name}, found none")
    entry["first"], entry["last"] = window
    for name, value in entry.items():
        _check_type(f"{label}: {name}", value, str(declared[name].type))
    check = Check(**entry)
    _check_values(label, check)
    return check


def brief(value: Any) -> str:
    """What was found, short enough for one line, whatever a file made of it."""
    if isinstance(value, str) and value.isprintable() and 0 < len(value) < 40:
        return value
    return "nothing" if value is None else _BRIEF.repr(value)


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 2

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "bool": (bool,),
}


def _check_type(label: str, value: Any, expected: str) -> None:
    wrong = isinstance(value, bool) and expected != "bool"
    if wrong or not isinstance(value, _TYPES[expected]):
        raise InputError(f"{label}: expected {expected}, got {_BRIEF.repr(value)}")


def _check_values(label: str, check: Check) -> None:
    """Refuse what has the right type and cannot be meant."""
    last = check.last
    allowed = (
        ("code", bool(check.code.strip()), "text"),
        ("kind", check.kind in KINDS, f"one of {', '.join(KINDS)}"),
        ("window", check.first >= 0, "a first step of 0 or more"),
        ("window", last is None or last >= check.first, "first <= last"),
        ("limit", math.isfinite(check.limit), "a finite number"),
        ("relative_tolerance", 0 <= check.relative_tolerance < 1, "0 or more, below 1"),
        ("by_setting", check.by_setting in (None, *SETTINGS), "clip, or nothing"),
    )
    for name, good, expected in allowed:
        if not good:
            found = [check.first, last] if name == "window" else getattr(check, name)
            raise InputError(f"{label}: {name}: expected {expected}; got {found!r}")


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
    for one in (run, baseline):
        if one is not None and not np.array_equal(one.steps, np.arange(len(one))):
            return _inconclusive(f"the steps of {one.name} are not 0, 1, 2, ...")
    end = len(run) - 1 if check.last is None else check.last
    if len(run) <= max(end, check.first):
        return _inconclusive(
            f"the record ends at step {len(run) - 1}, the window is "
            f"[{check.first}, {'the end' if check.last is None else end}]"
        )
    window = slice(check.first, end + 1)
    values, measured = run.scalar(check.column), run.measured(check.column)[window]
    if not measured.any():
        return _inconclusive(f"{check.column} was not measured in the window")
    if check.kind not in COMPARING:
        return _judge(check, run, np.flatnonzero(measured) + check.first, values)
    if not measured.all():
        return _inconclusive(f"{check.column} was not measured at every step")
    if baseline is None or len(baseline) <= end:
        return _inconclusive(f"no baseline that reaches step {end}")
    if baseline.folder == run.folder:
        return _inconclusive("the run is the baseline itself")
    other = ema(baseline.scalar(check.column)[: end + 1])
    gap = np.abs(ema(values[: end + 1]) - other)
    return _judge(check, run, np.arange(check.first, end + 1), gap)


def _inconclusive(reason: str) -> Outcome:
    return Outcome("inconclusive", reason=reason)


def _judge(
    check: Check, run: RunHistory, steps: np.ndarray, values: np.ndarray
) -> Outcome:
    """The largest of the values at these steps, or the first that is not finite."""
    values = values[steps]
    finite = np.isfinite(values)
    place = int(np.argmax(values)) if finite.all() else int(np.argmin(finite))
    observed, step = float(values[place]), int(steps[place])
    limit = check.limit + abs(check.limit) * check.relative_tolerance
    met = observed < limit if check.strict else observed <= limit
    passed = math.isfinite(observed) and met
    reason = _setting(check, run, passed)
    return Outcome("passed" if passed else "failed", observed, step, reason)


def _setting(check: Check, run: RunHistory, passed: bool) -> str:
    """What the answer owes to the run's setting and not to its behaviour."""
    if check.by_setting is None:
        return ""
    if check.by_setting in run.facts.unknown:
        return f"{check.by_setting} is not known of this run"
    value = getattr(run.facts, check.by_setting)
    label = f"{check.by_setting} {'null' if value is None else value}"
    if value is not None and value <= check.limit:
        return f"true by construction ({label})" if passed else ""
    return "" if passed else f"by its setting ({label}), not its behaviour"
