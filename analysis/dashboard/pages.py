"""The two pages: one run with its baseline, and several runs laid over each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from analysis.compare import Divergence, differing_choices, first_difference
from analysis.dashboard.batches import batch_log
from analysis.dashboard.catalogue import PANELS
from analysis.dashboard.difference import loss_difference
from analysis.dashboard.drawing import (
    PER_TENSOR_CHARTS,
    Sheet,
    make_sheet,
    overlay_charts,
    run_chart,
)
from analysis.dashboard.lines import MAX_LINES, Chart, Panel
from analysis.dashboard.logged import logged_panels
from analysis.dashboard.payload import Payload
from analysis.dashboard.render import render
from analysis.dashboard.seams import seam_notes, seams
from analysis.flags import Flag, find_flags
from analysis.history import MANIFEST, RunHistory, read_manifest
from minigpt import records as col
from minigpt.records import InputError

OTHER_LINES = 40  # lines of a run's page besides those per tensor
OVERLAY_LINES = 24  # lines of one run on a page of several
MAX_RUNS = 32
# What is no choice about the training, or is long text.
_NOT_COMPARED = ("paths", "tracking", "name", "experiment", "predictions")
_LISTED = 6


def draw_dashboard(run: RunHistory, baseline: RunHistory | None = None) -> str:
    """The page of one run.

    Args:
        run: its record.
        baseline: a run drawn below it in grey, such as its twin.

    Returns:
        HTML that needs no network.
    """
    payload, flags = Payload(), find_flags(run)
    tensors = min(len(run.tensors), MAX_LINES)
    further = logged_panels([run])
    lines = PER_TENSOR_CHARTS * tensors + OTHER_LINES + _charts(further)
    lines += OVERLAY_LINES if baseline is not None else 0
    sheet = make_sheet(run, 0, _kept_rows(run, flags), lines, payload)
    below = None
    if baseline is not None:  # one of no steps is false, and to be named all the same
        below = make_sheet(baseline, 1, sheet.keep, lines, payload)
    page = {
        "title": run.name,
        "kind": "run",
        "runs": [run.name],
        "baseline": None if baseline is None else baseline.name,
        "facts": _facts(run),
        "notes": [*run.notes, *seam_notes(run), *_thinning_note(sheet)],
        "panels": _panels(
            (*PANELS, *further), lambda chart: [run_chart(chart, sheet, below)]
        ),
        "flags": _flags(flags),
        "seams": seams([run]),
        "batches": batch_log(run, sheet.keep, payload),
        "steps": _range([run]),
        "stride": _stride([run]),
    }
    return render(page, payload)


def draw_comparison(runs: Sequence[RunHistory]) -> str:
    """The page of several runs, the first of which the others are compared with.

    Raises:
        InputError: fewer than two runs, or too many to tell apart.
    """
    check_count(len(runs))
    payload = Payload()
    found = [find_flags(run) for run in runs]
    more = logged_panels(runs)
    lines = (OVERLAY_LINES + _charts(more)) * len(runs)
    sheets = [
        make_sheet(run, index, _kept_rows(run, flags), lines, payload)
        for index, (run, flags) in enumerate(zip(runs, found, strict=True))
    ]
    page = {
        "title": f"{runs[0].name} and {len(runs) - 1} more",
        "kind": "comparison",
        "runs": [run.name for run in runs],
        "baseline": None,
        "facts": [],
        "notes": [
            *(
                f"{run.name}: {note}"
                for run in runs
                for note in (*run.notes, *seam_notes(run))
            ),
            *dict.fromkeys(note for sheet in sheets for note in _thinning_note(sheet)),
        ],
        "choices": _choices(runs),
        "divergences": _divergences(runs),
        "panels": _panels(
            (*PANELS, *more),
            lambda chart: overlay_charts(chart, sheets),
            {"1": loss_difference(runs[0])},
        ),
        "flags": _named_flags(runs, found),
        "seams": seams(runs),
        "batches": None,
        "steps": _range(runs),
        "stride": _stride(runs),
    }
    return render(page, payload)


def check_count(runs: int) -> None:
    """Refuse a number of runs that one page cannot show, before they are read.

    Raises:
        InputError: fewer than two runs, or too many to tell apart.
    """
    if not 2 <= runs <= MAX_RUNS:
        raise InputError(f"runs to compare: expected 2 to {MAX_RUNS}, found {runs}")


def _charts(panels: Sequence[Panel]) -> int:
    return sum(len(panel.charts) for panel in panels)


def _panels(
    shown_panels: Sequence[Panel],
    charts: Callable[[Chart], list[dict[str, Any]]],
    further: Mapping[str, Chart] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """The panels as JSON, with a further chart in those of these numbers."""
    panels = []
    for panel in shown_panels:
        more = [further[panel.number]] if panel.number in further else []
        shown = [packed for one in (*panel.charts, *more) for packed in charts(one)]
        panels.append(
            {
                "number": panel.number,
                "title": panel.title,
                "conclusion": panel.conclusion,
                "charts": shown,
                "note": panel.note,
            }
        )
    for panel, wide in zip(panels, _wide(panels), strict=True):
        panel["wide"] = wide
    return panels


def _wide(panels: Sequence[dict[str, Any]]) -> list[bool]:
    """Which panels fill a row: all but two neighbours of one chart each."""
    single = [len(panel["charts"]) == 1 for panel in panels]
    wide, index = [], 0
    while index < len(single):
        pair = single[index : index + 2] == [True, True]
        wide += [False, False] if pair else [True]
        index += 2 if pair else 1
    return wide


def _kept_rows(run: RunHistory, flags: Sequence[Flag]) -> list[int]:
    """Rows that stay exact: the extremes of loss and norm, then flagged ones."""
    rows = []
    for name in (col.TRAIN_LOSS, col.GRAD_NORM_PRECLIP):
        if run.has(name) and np.isfinite(run.scalar(name)).any():
            values = run.scalar(name)
            rows.append(int(np.argmax(np.where(np.isfinite(values), values, -np.inf))))
    return rows + np.searchsorted(run.steps, [flag.step for flag in flags]).tolist()


def _thinning_note(sheet: Sheet) -> list[str]:
    steps = len(sheet.run)
    if steps <= sheet.cells:
        return []
    wide = -(-steps // sheet.cells)
    return [
        f"{steps:,} steps are drawn in cells of {wide:,}: each line keeps the smallest "
        "and the largest value of every cell, and every step around the largest loss, "
        "the largest gradient norm and the first flagged steps"
    ]


def _facts(run: RunHistory) -> list[tuple[str, str]]:
    """What the manifest declares, without what was done to the run on purpose."""
    facts = run.facts
    clip = "no clipping" if facts.clip is None else f"{facts.clip:g}"
    schedule = ", ".join(f"{key} {value}" for key, value in facts.schedule.items())
    optimizer = None
    if facts.optimizer:
        optimizer = f"{facts.optimizer} ({facts.beta1}, {facts.beta2}), eps {facts.eps}"
    named = [
        ("status", facts.status),
        ("steps", f"{len(run):,}"),
        ("seed", facts.seed),
        ("data seed", facts.data_seed),
        ("clip", "not declared" if "clip" in facts.unknown else clip),
        ("batch size", facts.batch_size),
        ("optimizer", optimizer),
        ("schedule", schedule or None),
        ("precision", facts.precision),
        ("tensors", f"{len(run.tensors):,}"),
    ]
    return [(k, "not declared" if v is None else str(v)) for k, v in named]


def _flags(flags: Sequence[Flag]) -> list[dict[str, Any]]:
    return [{"step": flag.step, "text": "; ".join(flag.texts)} for flag in flags]


def _named_flags(
    runs: Sequence[RunHistory], found: Sequence[Sequence[Flag]]
) -> list[dict[str, Any]]:
    named = [
        entry | {"text": f"{run.name}: {entry['text']}"}
        for run, flags in zip(runs, found, strict=True)
        for entry in _flags(flags)
    ]
    return sorted(named, key=lambda entry: entry["step"])


def _range(runs: Sequence[RunHistory]) -> list[int]:
    """First and last step of all, or [0, 0]."""
    ends = [int(step) for run in runs if len(run) for step in run.steps[[0, -1]]]
    return [min(ends), max(ends)] if ends else [0, 0]


def _stride(runs: Sequence[RunHistory]) -> int:
    """The largest distance such that all recorded steps lie on its multiples."""
    first = _range(runs)[0]
    apart = [int(np.gcd.reduce(run.steps - first)) for run in runs if len(run)]
    return max(1, int(np.gcd.reduce(apart or [1])))


def _choices(runs: Sequence[RunHistory]) -> list[tuple[str, list[str]]]:
    configs = [_config(run) for run in runs]
    return list(differing_choices(configs).items())


def _config(run: RunHistory) -> dict[str, Any]:
    """The choices of a run, and the code and versions that it was made with."""
    # A record that came from elsewhere may have no manifest, and so no choices.
    manifest = read_manifest(run.folder) if (run.folder / MANIFEST).is_file() else {}
    config = manifest.get("config")
    kept = _without(config) if isinstance(config, dict) else {}
    for key, value in kept.items():
        if isinstance(value, dict):
            kept[key] = _without(value)
    made = {key: manifest.get(key) for key in ("code_hash", "versions")}
    return kept | {key: value for key, value in made.items() if value}


def _without(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _NOT_COMPARED}


def _divergences(runs: Sequence[RunHistory]) -> list[dict[str, Any]]:
    return [
        {"run": run.name} | _told(first_difference(runs[0], run)) for run in runs[1:]
    ]


def _told(found: Divergence) -> dict[str, Any]:
    lone = ""
    if found.lone:
        lone = f"; in one of the two only: {_listed(found.lone)}"
    if found.step is None and not found.common:
        return {"step": None, "text": f"no step in common{lone}"}
    if found.step is None:
        text = f"equal in all {found.common:,} common steps{lone}"
        return {"step": None, "text": text}
    text = f"first differs at step {found.step:,}: {_listed(found.columns)}{lone}"
    return {"step": found.step, "text": text}


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
