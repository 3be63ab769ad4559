"""How runs differ: in what was chosen, and from which step on in what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.history import RunHistory
from minigpt.records import TIME_WALL

UNSET = "not set"


@dataclass(frozen=True)
class Divergence:
    """Where two records part.

    Attributes:
        step: the first step at which a column differs; None if none does.
        columns: those that differ there, in the order of the record.
        common: how many first steps both records have.
        lone: columns that only one of the two has, or has as numbers of another kind.
    """

    step: int | None
    columns: tuple[str, ...]
    common: int
    lone: tuple[str, ...]


def first_difference(one: RunHistory, other: RunHistory) -> Divergence:
    """The first step at which two records are not equal bit for bit.

    0.0 and -0.0 differ, and so do a measured NaN and no measurement; one NaN equals
    another, as a journal does not keep the bits of all of them. Wall-clock time is
    left out. Only steps that both have, from the first on, and only columns that both
    have are compared. A text of the whole run that differs does so at the first step.
    """
    common = min(len(one), len(other))
    unequal = np.flatnonzero(one.steps[:common] != other.steps[:common])
    common = int(unequal[0]) if len(unequal) else common
    kinds, others = _kinds(one), _kinds(other)
    shared = [name for name in kinds if others.get(name) == kinds[name]]
    lone = sorted((kinds.keys() | others.keys()) - set(shared))
    firsts = {
        name: row
        for name in shared
        if (row := _first_row(one, other, name, common)) is not None
    }
    if not firsts:
        return Divergence(None, (), common, tuple(lone))
    row = min(firsts.values())
    names = tuple(name for name, first in firsts.items() if first == row)
    return Divergence(int(one.steps[row]), names, common, tuple(lone))


def _kinds(run: RunHistory) -> dict[str, tuple[str, bool]]:
    """Column -> what it holds, without wall-clock time; only like is comparable."""
    kinds = {name: (column.dtype.kind, False) for name, column in run.data.flat.items()}
    for name, (values, _) in run.data.arrays.items():
        kinds[name] = values.dtype.kind, True
    kinds |= {name: ("text", False) for name in run.constants}
    # A column that has one of our names too is compared under that one.
    left_out = {TIME_WALL, *(run.logged.aliases.values() if run.logged else ())}
    return {name: kind for name, kind in kinds.items() if name not in left_out}


def _first_row(
    one: RunHistory, other: RunHistory, name: str, common: int
) -> int | None:
    """The first of the common rows at which a column differs."""
    if name in one.constants:
        return 0 if common and one.constants[name] != other.constants[name] else None
    if name in one.data.arrays:
        return _first_ragged(one.data.arrays[name], other.data.arrays[name], common)
    differs = _unequal(one.data.flat[name][:common], other.data.flat[name][:common])
    if name in one.data.measured or name in other.data.measured:
        differs |= one.measured(name)[:common] != other.measured(name)[:common]
    rows = np.flatnonzero(differs)
    return int(rows[0]) if len(rows) else None


def _unequal(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Where values are not the same; a NaN is the same as any NaN."""
    if mine.dtype.kind != "f":
        return mine != theirs
    signs = np.signbit(mine) != np.signbit(theirs)
    return ((mine != theirs) | signs) & ~(np.isnan(mine) & np.isnan(theirs))


_Ragged = tuple[np.ndarray, np.ndarray]


def _first_ragged(one: _Ragged, other: _Ragged, common: int) -> int | None:
    (values, offsets), (others, their_offsets) = one, other
    longer = np.flatnonzero(
        np.diff(offsets[: common + 1]) != np.diff(their_offsets[: common + 1])
    )
    same = int(longer[0]) if len(longer) else common
    end = int(offsets[same] - offsets[0])
    mine = values[offsets[0] : offsets[0] + end]
    theirs = others[their_offsets[0] : their_offsets[0] + end]
    places = np.flatnonzero(_unequal(mine, theirs))
    if len(places):
        place = int(places[0]) + int(offsets[0])
        return int(np.searchsorted(offsets, place, side="right")) - 1
    return same if same < common else None


def differing_choices(configs: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Dotted key -> its value in each config, for the keys that are not all equal."""
    flat = [_flat(config) for config in configs]
    keys = {key: None for one in flat for key in one}
    rows = {key: [one.get(key, UNSET) for one in flat] for key in keys}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def _flat(config: dict[str, Any]) -> dict[str, str]:
    """Dotted keys, without recursion: a config may be nested as deep as JSON allows."""
    flat: dict[str, str] = {}
    ahead = [(str(key), value) for key, value in reversed(config.items())]
    while ahead:
        key, value = ahead.pop()
        if isinstance(value, dict) and value:
            inner = reversed(value.items())
            ahead += [(f"{key}.{name}", part) for name, part in inner]
        else:
            flat[key] = "null" if value is None else str(value)
    return flat
