"""A run that a script of one's own logged, read so that it looks like one of ours.

Its scalars are occasional columns under the script's own keys. The few that have a
name here get that name too, and the figures of an update are not measured at a row
that had none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from analysis.aliases import ALIASES, alias_of
from analysis.blocks import Columns
from analysis.summary_rules import Rule, parse_rule
from minigpt import records as col
from minigpt.records import InputError, RecordLayout

LOGGED = "logged"  # the kind of such a run in its manifest
HISTOGRAM = "histogram/"
COUNTS, EDGES = "/counts", "/edges"


@dataclass(frozen=True)
class Declared:
    """What a script said of its run.

    Attributes:
        rules: key -> how the summary takes it.
        summary: key -> number or text that the script put into the summary itself.
        aliases: canonical column -> the script's key that is drawn as it.
    """

    rules: dict[str, Rule] = field(default_factory=dict)
    summary: dict[str, float | str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)


def declared_of_manifest(manifest: dict[str, Any]) -> Declared:
    """The rules and explicit values of a manifest's summary.

    Raises:
        InputError: a rule is none, or a value is neither number nor text.
    """
    rules, summary = (manifest.get(name) or {} for name in ("summary_rules", "summary"))
    for name, found in (("summary_rules", rules), ("summary", summary)):
        if not isinstance(found, dict):
            raise InputError(
                f"manifest {name}: expected an object, found {found!r:.80}"
            )
    for key, value in summary.items():
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise InputError(
                f"manifest summary.{key}: expected a number or text, "
                f"found {value!r:.80}"
            )
    return Declared(
        {key: parse_rule(key, text) for key, text in rules.items()}, dict(summary)
    )


def read_as_ours(columns: Columns, declared: Declared, notes: list[str]) -> Columns:
    """The record with the names that the analysis knows.

    Args:
        columns: as they were recorded.
        declared: gets the aliases that were found.
        notes: gets a line for each of them.
    """
    flat, measured = dict(columns.flat), dict(columns.measured)
    for canonical in ALIASES:
        if canonical in flat:
            continue
        key = alias_of(canonical, columns.layout.occasional)
        if key is not None:
            flat[canonical], measured[canonical] = flat[key], measured[key]
            declared.aliases[canonical] = key
            notes.append(f"{key} is read as {canonical}")
    if col.STEP_SKIPPED in columns.layout.scalars:
        updated = flat[col.STEP_SKIPPED] == 0
        if not updated.all():
            measured |= dict.fromkeys(_of_updates(columns.layout), updated)
    return replace(columns, flat=flat, measured=measured)


def _of_updates(layout: RecordLayout) -> list[str]:
    """Columns of the observer, which measures updates."""
    about_rows = (col.TIME_WALL, col.STEP_SKIPPED)
    scalars = [name for name in layout.scalars if name not in about_rows]
    return [*scalars, *layout.tensors]


def histogram_keys(columns: Columns) -> list[str]:
    """Keys of the logged histograms whose counts and edges are both there."""
    return [
        name.removeprefix(HISTOGRAM).removesuffix(COUNTS)
        for name in columns.arrays
        if name.startswith(HISTOGRAM)
        and name.endswith(COUNTS)
        and name.removesuffix(COUNTS) + EDGES in columns.arrays
    ]


def scalar_keys(columns: Columns) -> list[str]:
    """Keys of the logged scalars, in the order in which they came up."""
    return list(columns.layout.occasional)
