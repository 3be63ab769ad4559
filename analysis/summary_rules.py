"""What the summary says of one key: its last, smallest or largest value, or one step's.

The rules are in the manifest from the moment they are given, so that the summary is
a function of record and rules, whatever became of the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigpt.records import InputError

LAST, MIN, MAX, AT = "last", "min", "max", "at"
_AT = re.compile(r"at:(\d{1,16})")


@dataclass(frozen=True)
class Rule:
    """Attributes: kind, of LAST, MIN, MAX, AT; step, of an AT rule, else None."""

    kind: str
    step: int | None = None


def parse_rule(key: str, text: Any) -> Rule:
    """The rule that a text spells.

    Raises:
        InputError: it spells none; the key is named.
    """
    if text in (LAST, MIN, MAX):
        return Rule(text)
    found = _AT.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise InputError(
            f"summary of {key!r}: expected 'last', 'min', 'max' or 'at:<step>', "
            f"got {text!r:.60}"
        )
    return Rule(AT, int(found[1]))


def summary_of(
    values: np.ndarray, steps: np.ndarray, rule: Rule
) -> tuple[float, int] | None:
    """The value that a rule picks, and the step where it stood.

    Args:
        values: what was measured, float64, shape (m,).
        steps: where, int64, shape (m,), increasing.
        rule: which of them.

    Returns:
        None if there is none. The smallest and the largest are those of the finite
        values, the first of them where there are several; the last may be a NaN.
    """
    rows = np.arange(len(values))
    if rule.kind == AT:
        rows = np.flatnonzero(steps == rule.step)
    elif rule.kind in (MIN, MAX):
        rows = np.flatnonzero(np.isfinite(values))
    if not len(rows):
        return None
    if rule.kind == MIN:
        row = rows[values[rows].argmin()]
    else:
        row = rows[values[rows].argmax()] if rule.kind == MAX else rows[-1]
    return float(values[row]), int(steps[row])
