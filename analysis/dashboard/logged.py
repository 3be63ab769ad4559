"""Panels of what a script logged: its further values and its histograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import numpy as np

from analysis.aliases import ALIASES
from analysis.dashboard.heat import Heat, read_heat
from analysis.dashboard.lines import AS_LOGGED, Absent, Chart, Line, Panel, column
from analysis.history import RunHistory
from analysis.logged import HISTOGRAM, histogram_keys, scalar_keys

MAX_VALUES, MAX_HISTOGRAMS = 24, 8  # charts of each panel
LOG_RANGE = 100  # largest over smallest value from which on a scale is logarithmic


def logged_panels(runs: Sequence[RunHistory]) -> tuple[Panel, ...]:
    """The panels of what only scripts log; none if no run of a page is such a one.

    A value that has a name of ours is in the panel of that name and not here.

    Args:
        runs: of the page; a key of any of them has its chart.
    """
    if not any(run.logged for run in runs):
        return ()
    keys, hists = _keys(runs, _further), _keys(runs, _histograms)
    return (
        Panel(
            "V",
            "Logged values",
            "What the script logged besides what the panels above show. Read it "
            "together with them: a metric that moves alone is the metric's own.",
            tuple(
                _value_chart(number, key, runs)
                for number, key in enumerate(keys[:MAX_VALUES])
            )
            or (_nothing("values", "the script logged no other values"),),
            note=_left_out(keys[MAX_VALUES:], "values"),
        ),
        Panel(
            "H",
            "Logged histograms",
            "A column that widens or drifts is a layer that leaves its scale; one that "
            "collapses into a line has died.",
            tuple(
                _heat_chart(number, key)
                for number, key in enumerate(hists[:MAX_HISTOGRAMS])
            )
            or (_nothing("histograms", "the script logged no histograms"),),
            note=_left_out(hists[MAX_HISTOGRAMS:], "histograms"),
        ),
    )


def _keys(
    runs: Sequence[RunHistory], of: Callable[[RunHistory], list[str]]
) -> list[str]:
    return list(dict.fromkeys(key for run in runs if run.logged for key in of(run)))


def _further(run: RunHistory) -> list[str]:
    assert run.logged
    shown = {*run.logged.aliases.values(), *ALIASES}
    return [key for key in scalar_keys(run.data) if key not in shown]


def _histograms(run: RunHistory) -> list[str]:
    return histogram_keys(run.data)


def _left_out(keys: Sequence[str], what: str) -> str:
    if not keys:
        return ""
    named = ", ".join(islice(keys, 6))
    more = f" and {len(keys) - 6} more" if len(keys) > 6 else ""
    return f"Not drawn, as there are too many {what}: {named}{more}."


def _nothing(key: str, reason: str) -> Chart:
    def build(run: RunHistory) -> list[Line]:
        raise Absent(reason)

    return Chart(f"logged-{key}", f"Logged {key}", AS_LOGGED, build)


def _value_chart(number: int, key: str, runs: Sequence[RunHistory]) -> Chart:
    """A chart of one key; its own name is no part of the page's addresses."""
    return Chart(
        f"logged-{number}",
        key,
        AS_LOGGED,
        lambda run: [column(run, key, key)],
        _scale(key, runs),
        alone=(key,),
    )


def _scale(key: str, runs: Sequence[RunHistory]) -> str:
    """Logarithmic for what is positive and spans powers of ten."""
    parts = [run.scalar(key) for run in runs if key in run.data.flat]
    values = np.concatenate([part[np.isfinite(part)] for part in parts])
    spans = len(values) and values.min() > 0
    return "log" if spans and values.max() > LOG_RANGE * values.min() else "linear"


def _heat_chart(number: int, key: str) -> Chart:
    return Chart(
        f"heat-{number}",
        key,
        AS_LOGGED,
        lambda run: [_median(run, key)],
        alone=("median",),
        heat=partial(_heat, key),
    )


def _heat(key: str, run: RunHistory) -> Heat:
    name = HISTOGRAM + key
    if key not in histogram_keys(run.data):
        raise Absent(f"the record has no columns {name}/*")
    found = read_heat(run, key)
    if found is None:
        raise Absent(f"no step has a whole histogram of {key}")
    return found


def _median(run: RunHistory, key: str) -> Line:
    heat = _heat(key, run)
    known = np.isfinite(heat.medians)
    if not known.any():
        raise Absent(f"{key} had no finite value")
    return Line("median", heat.rows[known], heat.medians[known], sparse=True)
