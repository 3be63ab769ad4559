"""The notes on the pages of runs and sweeps in MLflow, in Markdown.

MLflow renders a note as Markdown with HTML in it. A name or an error message comes
from a run, which may be anybody's; it is shown as text, whatever it contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from analysis import summary as keys
from analysis.flags import Flag
from analysis.logged import LOGGED
from analysis.summary import Figure, RunSummary

MAX_NOTE = 7800  # characters; MLflow cuts a tag at 8000, and a link may come later
MAX_ALERTS, MAX_ROWS = 5, 25  # of one note
MAX_WORD = 50  # characters of a name that a script gave
MAX_TEXT = 300  # characters of one text of a run, before it is escaped

# Left as they are: letters, digits, blanks, commas, a dot between digits and a hyphen
# between letters or digits. None of them means anything to Markdown or HTML there.
_MARKUP = re.compile(r"(?!(?<=[0-9])\.(?=[0-9])|(?<=[A-Za-z0-9])-(?=[A-Za-z0-9]))\W|_")
_FIGURES = {
    keys.FINAL_LOSS: "final loss",
    keys.PEAK_LOSS: "peak loss after the warmup",
    keys.LOSS_JUMP: "largest loss jump over the 100 steps before",
    keys.LARGEST_NORM: "largest pre-clip norm after the warmup",
    keys.FIRST_NONFINITE: "first step that is not finite",
    keys.LARGEST_RESIDUAL: "largest accounting residual",
    keys.DUPLICATES: "most duplicate rows in a batch",
}
_GAP = "&ensp;"  # the UI's tables have no space between their columns


@dataclass(frozen=True)
class Outcome:
    """What became of a run, as far as a note tells it.

    Attributes:
        name: of the run.
        status: running, finished, failed or killed.
        error: what ended it, if anything did.
        summary: of its record.
    """

    name: str
    status: str
    error: str | None = None
    summary: RunSummary = field(default_factory=RunSummary)


def escaped(text: str, limit: int = MAX_TEXT) -> str:
    """Text that Markdown and HTML show as it is, on one line, cut at the limit."""
    line = " ".join(text.split())
    line = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}"
                   for sign in line)  # fmt: skip
    cut = line if len(line) <= limit else line[: limit - 3] + "..."
    return _MARKUP.sub(_reference, cut)


def _reference(found: re.Match[str]) -> str:
    sign = found[0]
    return sign if sign in " ," else f"&#{ord(sign)};"


def page(experiment_id: str, run_id: str, file: str | None = None) -> str:
    """The address of a run's page, or of one of its artifacts, within the UI."""
    ids = quote(experiment_id, safe=""), quote(run_id, safe="")
    address = "#/experiments/{}/runs/{}".format(*ids)
    return address if file is None else f"{address}/artifacts/{file}"


def run_note(
    outcome: Outcome,
    manifest: dict[str, Any],
    links: dict[str, str] | None = None,
    alerts: Sequence[dict[str, Any]] = (),
) -> str:
    """The note on a run's page.

    Args:
        outcome: how it ended, or that it runs.
        manifest: of the run.
        links: words -> address, shown at the top: the UI folds what is below.
        alerts: of the run, as ``runners.script.alerts`` reads them.
    """
    logged, config = manifest.get("kind") == LOGGED, manifest["config"]
    top = list(_said(manifest)) if logged else [_choices(config)]
    top.append(_status(outcome, None if logged else config["steps"]))
    if outcome.error:
        top.append(f"Reason: {escaped(outcome.error)}")
    if links:
        top.append(" · ".join(f"[{words}]({to})" for words, to in links.items()))
    lines = ["\n".join(top), ""]  # one line each: the UI breaks them as written
    if alerts:
        lines += [f"Alerts ({len(alerts)}, the newest first):", ""]
        shown = list(_alert_lines(alerts[: -MAX_ALERTS - 1 : -1]))
        lines += [*_bounded(shown, _length(lines)), ""]
    if outcome.summary.figures:
        rows = list(_figure_rows(outcome.summary.figures))
        lines += [f"| | {_GAP}value | {_GAP}step |", "|---|---|---|"]
        lines += [*_bounded(rows[:MAX_ROWS], _length(lines)), ""]
        if len(rows) > MAX_ROWS:
            lines += [f"and {len(rows) - MAX_ROWS} more of the summary", ""]
    if outcome.summary.flags:
        lines += _flag_lines(outcome.summary.flags, _length(lines))
    return "\n".join(lines).strip()


def linked(note: str, words: str, to: str) -> str:
    """A note of ours with one more link at its top; with it already, as it is."""
    if f"]({to})" in note:
        return note
    top, blank, rest = note.partition("\n\n")
    return f"{top}\n[{words}]({to}){blank}{rest}"


def _choices(config: dict[str, Any]) -> str:
    """What the run is, in one line."""
    kind, clip = config["injection"]["kind"], config["clip"]
    at = f"**{escaped(kind)}** at step {_text(config['injection_step'])}"
    parts = [
        "**No fault**" if kind == "none" else f"Fault: {at}",
        "no clipping" if clip is None else f"clip {_text(clip)}",
        f"loader {escaped(config['loader']['kind'])}",
        f"seed {_text(config['seed'])}",
    ]
    if config["data_seed"] != config["seed"]:
        parts.append(f"data seed {_text(config['data_seed'])}")
    return ", ".join([*parts, f"{_text(config['steps'])} steps"])


def _said(manifest: dict[str, Any]) -> Iterator[str]:
    """What a script said of its run, a line each."""
    project = escaped(str(manifest["tracking"]["experiment"]), MAX_WORD)
    parts = [f"Logged by a script, project {project}"]
    for key, words in (("group", "group"), ("job_type", "job type")):
        if manifest.get(key):
            parts.append(f"{words} {escaped(str(manifest[key]), MAX_WORD)}")
    if manifest.get("tags"):
        parts.append(f"tags {escaped(', '.join(manifest['tags']), 2 * MAX_WORD)}")
    yield ", ".join(parts)
    if manifest.get("notes"):
        yield f"Notes: {escaped(str(manifest['notes']), 3 * MAX_WORD)}"


def _alert_lines(alerts: Sequence[dict[str, Any]]) -> Iterator[str]:
    for alert in alerts:
        step = "" if alert.get("step") is None else f" at step {_text(alert['step'])}"
        text = f": {escaped(alert['text'], 2 * MAX_WORD)}" if alert["text"] else ""
        level = escaped(alert["level"], MAX_WORD)
        yield f"- **{level}**{step}: {escaped(alert['title'], 2 * MAX_WORD)}{text}"


def _text(value: Any) -> str:
    return escaped(str(value))


def _status(outcome: Outcome, planned: Any) -> str:
    """Status and steps, of as many as were planned, if that is known."""
    status = f"Status: **{escaped(outcome.status)}**"
    if outcome.status == "running":
        return status
    summary = outcome.summary
    of = "" if planned is None else f" of {_text(planned)}"
    status += f", {summary.steps}{of} steps recorded"
    if not summary.steps:
        return status
    if not summary.flags:
        return f"{status}, no step is flagged"
    steps = ", ".join(str(flag.step) for flag in summary.flags[:5])
    more = ", ..." if len(summary.flags) > 5 else ""
    return f"{status}, flagged: **{steps}{more}**"


def _figure_rows(figures: dict[str, Figure]) -> Iterator[str]:
    for key, words in _FIGURES.items():
        if key in figures:
            figure = figures[key]
            value = number(figure.value, key in (keys.FIRST_NONFINITE, keys.DUPLICATES))
            yield f"| {words} | {_GAP}{value} | {_GAP}{figure.step} |"
    for key, figure in figures.items():
        if key not in keys.SUMMARY_KEYS:  # of a script's own rules
            name = _text(key.removeprefix(keys.PREFIX))
            yield f"| {name} | {_GAP}{number(figure.value)} | {_GAP}{figure.step} |"


def number(value: float, count: bool = False) -> str:
    """A number as the notes show it: four digits, or a count."""
    return f"{value:.0f}" if count else f"{value:.4g}"


def _flag_lines(flags: Sequence[Flag], used: int) -> list[str]:
    rows = [
        f"- step {flag.step}: {'; '.join(map(escaped, flag.texts))}" for flag in flags
    ]
    head = ["Flagged steps:", ""]
    return head + _bounded(rows, used + _length(head))


def sweep_note(
    title: str, rows: Iterable[tuple[str, Outcome | None]], links: dict[str, str]
) -> str:
    """The note on the page of a sweep's parent: one row a run.

    Args:
        title: the overrides that were swept.
        rows: address of a run's page, and what became of it; None is not known.
        links: words -> address.
    """
    head = [f"Swept: **{escaped(title, 600)}**", ""]
    head += [" · ".join(f"[{words}]({to})" for words, to in links.items()), ""]
    titles = ("status", "final loss", "largest norm", "flagged steps")
    head += [f"| run | {' | '.join(_GAP + title for title in titles)} |"]
    head += ["|---|---|---|---|---|"]
    lines = [_sweep_row(address, outcome) for address, outcome in rows]
    return "\n".join(head + _bounded(lines, _length(head)))


def _sweep_row(address: str, outcome: Outcome | None) -> str:
    if outcome is None:
        return f"| [a run]({address}) | not complete here | | | |"
    figures = outcome.summary.figures
    shown = [
        number(figures[key].value, key == keys.FLAGGED) if key in figures else ""
        for key in (keys.FINAL_LOSS, keys.LARGEST_NORM, keys.FLAGGED)
    ]
    name = f"[{escaped(outcome.name)}]({address})"
    cells = [_GAP + cell for cell in (escaped(outcome.status), *shown)]
    return f"| {' | '.join([name, *cells])} |"


def _length(lines: Iterable[str]) -> int:
    return sum(len(line) + 1 for line in lines)


def _bounded(lines: list[str], used: int) -> list[str]:
    """As many lines as there is room for, and how many more there are."""
    room = MAX_NOTE - used - len("\n\nand 1000000 more")
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            return [*kept, "", f"and {len(lines) - len(kept)} more"]
        kept.append(line)
    return kept
