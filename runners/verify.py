"""``autopsy verify``: a spec, the runs pulled back from MLflow, a table of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.findings import tells_apart
from analysis.history import RunHistory, load
from analysis.verification import Check, Outcome, evaluate
from minigpt.records import InputError
from runners.config import config_hash
from runners.manifest import code_hash
from runners.report import say
from runners.settings import StoreError
from runners.spec import BASELINE, Spec, compose_run, read_spec
from runners.tracked import Place, find_by_config, pull

FIXED, BROKEN, HEALTHY = "fixed", "broken", "healthy"
EXIT_FAILED, EXIT_MISSING = 1, 3
_STYLES = {"passed": "green", "failed": "red", "inconclusive": "yellow"}

Overrides = list[str]


class MissingRuns(InputError):
    """Runs that a verdict needs are not there, or are not of this code."""


@dataclass(frozen=True)
class Subject:
    """One run of a role, the baseline's left out: a column of the table."""

    role: str
    run: RunHistory


@dataclass(frozen=True)
class Answers:
    """What every check says of every subject.

    Attributes:
        spec: the checks, down.
        subjects: across.
        outcomes: [check][subject].
    """

    spec: Spec
    subjects: list[Subject]
    outcomes: list[list[Outcome]]

    def judged(self) -> list[Outcome]:
        """Those that the exit code is about: of the fixed runs, or of all."""
        fixed = [subject.role == FIXED for subject in self.subjects]
        wanted = fixed if any(fixed) else [True] * len(fixed)
        return [
            outcome
            for row in self.outcomes
            for outcome, chosen in zip(row, wanted, strict=True)
            if chosen
        ]


def pull_runs(runs: Sequence[Overrides], place: Place) -> list[RunHistory]:
    """Each run, found in MLflow by its config's hash and read from its artifacts.

    Raises:
        InputError: overrides that make no run.
        MissingRuns: one or more are missing or stale, and names them all; or there is
            no store that opens.
    """
    hashes = [config_hash(compose_run(overrides)) for overrides in runs]
    found, missing = [], []
    for overrides, wanted in zip(runs, hashes, strict=True):
        try:
            run = find_by_config(place, wanted, code_hash())
            if run is None:
                raise InputError("no finished run")
            found.append(load(pull(run.info.run_id, place)))
        except StoreError as error:
            raise MissingRuns(str(error)) from None
        except InputError as error:
            missing.append((f"[{' '.join(overrides)}]", str(error)))
    if missing:
        raise MissingRuns(f"runs missing or stale: {_grouped(missing)}")
    return found


def _grouped(missing: Sequence[tuple[str, str]]) -> str:
    """``[a] [b] reason; [c] other reason``."""
    reasons: dict[str, list[str]] = {}
    for run, reason in missing:
        reasons.setdefault(reason, []).append(run)
    return "; ".join(f"{' '.join(runs)} {reason}" for reason, runs in reasons.items())


def compute(spec: Spec, place: Place) -> Answers:
    """Every check on every run of every role but the baseline's.

    Raises:
        MissingRuns: as ``pull_runs``.
        InputError: a check names a column that a run has not.
    """
    wanted = [(role, run) for role, runs in spec.roles.items() for run in runs]
    histories = pull_runs([run for _, run in wanted], place)
    baseline, subjects = None, []
    for (role, _), history in zip(wanted, histories, strict=True):
        if role == BASELINE:
            baseline = baseline or history
        else:
            subjects.append(Subject(role, history))
    outcomes = [
        [evaluate(check, subject.run, baseline) for subject in subjects]
        for check in spec.checks
    ]
    return Answers(spec, subjects, outcomes)


def table(answers: Answers) -> Table:
    """Checks down, runs across, each with its number and its answer."""
    spec = answers.spec
    title = Text(f"{spec.name}: {spec.verifies}")
    result = Table(title=title, title_justify="left", show_lines=True)
    result.add_column("check", ratio=3)
    for subject in answers.subjects:
        head = Text(f"{subject.role}\n{subject.run.name}", overflow="fold")
        result.add_column(head, ratio=2)
    for check, outcomes in zip(spec.checks, answers.outcomes, strict=True):
        result.add_row(_claim(check), *map(_cell, outcomes))
    return result


def _claim(check: Check) -> Text:
    unit = f" ({check.unit})" if check.unit else ""
    return Text(f"{check.code} {check.claim}{unit}")


def _cell(outcome: Outcome) -> Text:
    text = Text(outcome.answer, _STYLES[outcome.answer])
    if outcome.observed is not None:
        text.append(f" {outcome.observed:.4f} (step {outcome.step})", "none")
    return text.append(f": {outcome.reason}", "none") if outcome.reason else text


def findings(answers: Answers) -> list[str]:
    """A line a check: whether it tells the broken runs from the healthy ones."""

    def of(role: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
        pairs = zip(answers.subjects, outcomes, strict=True)
        return [outcome for subject, outcome in pairs if subject.role == role]

    return [
        f"{check.code} {tells_apart(check, of(BROKEN, row), of(HEALTHY, row))}"
        for check, row in zip(answers.spec.checks, answers.outcomes, strict=True)
    ]


def show(answers: Answers, console: Console) -> None:
    """The table, and below it what it says about the checks."""
    console.print(table(answers))
    for line in findings(answers):
        say(console, line)


def verify(reference: str, place: Place, console: Console) -> int:
    """Print the table of a spec.

    Returns:
        0 if the fixed runs pass every check, 1 if not, 3 if one is inconclusive;
        without a role "fixed", whether all runs do.

    Raises:
        InputError: a bad spec.
        MissingRuns: exit code 3.
    """
    answers = compute(read_spec(reference), place)
    show(answers, console)
    found = {outcome.answer for outcome in answers.judged()}
    if "failed" in found:
        return EXIT_FAILED
    return EXIT_MISSING if "inconclusive" in found else 0
