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
        lone: columns that only one of the two has.
    """

    step: int | None
    columns: tuple[str, ...]
    common: int
    lone: tuple[str, ...]


def first_difference(one: RunHistory, other: RunHistory) -> Divergence:
    """The first step at which two records are not equal bit for bit.

    Wall-clock time is left out. Only steps that both have, from the first on, and
    only columns that both have are compared.
    """
    common = min(len(one), len(other))
    unequal = np.flatnonzero(one.steps[:common] != other.steps[:common])
    common = int(unequal[0]) if len(unequal) else common
    shared = [name for name in one.columns if other.has(name) and name != TIME_WALL]
    lone = sorted(set(one.columns) ^ set(other.columns))
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


def _first_row(
    one: RunHistory, other: RunHistory, name: str, common: int
) -> int | None:
    """The first of the common rows at which a column differs."""
    if name in one.constants or name in other.constants:
        return None
    if name in one.data.arrays or name in other.data.arrays:
        return _first_ragged(one.data.arrays[name], other.data.arrays[name], common)
    mine, theirs = one.data.flat[name][:common], other.data.flat[name][:common]
    differs = mine != theirs
    if mine.dtype.kind == "f" and theirs.dtype.kind == "f":
        differs &= ~(np.isnan(mine) & np.isnan(theirs))
    rows = np.flatnonzero(differs)
    return int(rows[0]) if len(rows) else None


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
    differs = mine != theirs
    if mine.dtype.kind == "f":
        differs &= ~(np.isnan(mine) & np.isnan(theirs))
    places = np.flatnonzero(differs)
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


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = "null" if value is None else str(value)
    return flat
