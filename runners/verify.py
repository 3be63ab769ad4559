"""``autopsy verify``: a spec, the runs pulled back from MLflow, a table of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.history import RunHistory, load
from analysis.verification import Check, Outcome, check_from_plain, evaluate
from minigpt.records import InputError
from runners.compose import compose_config
from runners.config import config_hash
from runners.manifest import code_hash
from runners.override_errors import CONF_DIR
from runners.references import Place, find_by_config, pull

BASELINE = "baseline"
EXIT_FAILED, EXIT_MISSING = 1, 3
_STYLES = {"passed": "green", "failed": "red", "inconclusive": "yellow"}


class MissingRuns(InputError):
    """Runs that a verdict needs are not there, or are not of this code."""


@dataclass(frozen=True)
class Spec:
    """A verification spec.

    Attributes:
        name: of the spec.
        verifies: the claim it is about.
        roles: role -> its runs, each a list of Hydra overrides.
        checks: in the order of the file.
    """

    name: str
    verifies: str
    roles: dict[str, list[list[str]]]
    checks: list[Check]


@dataclass(frozen=True)
class Row:
    """One check on one run of a role."""

    check: Check
    role: str
    run: RunHistory
    outcome: Outcome


def read_spec(reference: str) -> Spec:
    """A spec by its name in conf/verification, or by the path of a file.

    Raises:
        InputError: no such spec, or not a spec.
    """
    folder = CONF_DIR / "verification"
    path = folder / f"{reference}.yaml"
    if "/" in reference or reference.endswith((".yaml", ".yml")):
        path = Path(reference)
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        raise InputError(
            f"spec {reference}: expected a YAML file or one of {names}; found neither"
        )
    try:
        plain = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"spec {path}: expected YAML, found {reason}") from error
    keys = {"name", "verifies", "roles", "checks"}
    if not isinstance(plain, dict) or plain.keys() != keys:
        found = sorted(plain) if isinstance(plain, dict) else type(plain).__name__
        raise InputError(f"spec {path}: expected keys {sorted(keys)}, found {found}")
    _check_roles(path, plain["roles"])
    if not (isinstance(plain["checks"], list) and plain["checks"]):
        raise InputError(f"spec {path}: checks: expected a list, found none")
    checks = [check_from_plain(entry) for entry in plain["checks"]]
    return Spec(plain["name"], plain["verifies"], plain["roles"], checks)


def _check_roles(path: Path, roles: Any) -> None:
    good = isinstance(roles, dict) and all(
        isinstance(runs, list)
        and runs
        and all(isinstance(run, list) and run for run in runs)
        for runs in roles.values()
    )
    if not good:
        raise InputError(
            f"spec {path}: roles: expected role -> list of runs, each a list of "
            f"overrides; got {roles!r}"
        )


def pull_runs(runs: Sequence[Sequence[str]], place: Place) -> list[RunHistory]:
    """Each run, found in MLflow by its config's hash and read from its artifacts.

    Raises:
        MissingRuns: one or more are missing or stale; names them all.
    """
    found, missing = [], []
    for overrides in runs:
        try:
            run = find_by_config(
                place, config_hash(compose_config(overrides)), code_hash()
            )
        except InputError as error:
            missing.append(f"[{' '.join(overrides)}] {error}")
            continue
        if run is None:
            missing.append(f"[{' '.join(overrides)}] no finished run")
        else:
            found.append(load(pull(run.info.run_id, place)))
    if missing:
        raise MissingRuns(f"runs missing or stale: {'; '.join(missing)}")
    return found


def compute(spec: Spec, place: Place) -> list[Row]:
    """Every check on every run of every role but the baseline's."""
    roles = {role: pull_runs(runs, place) for role, runs in spec.roles.items()}
    baselines = roles.pop(BASELINE, [])
    baseline = baselines[0] if baselines else None
    return [
        Row(check, role, run, evaluate(check, run, baseline))
        for check in spec.checks
        for role, runs in roles.items()
        for run in runs
    ]


def table(spec: Spec, rows: Sequence[Row]) -> Table:
    """Checks down, runs across, each with its number and its answer."""
    runs = list(dict.fromkeys((row.role, row.run.name) for row in rows))
    result = Table(
        title=f"{spec.name}: {spec.verifies}", title_justify="left", show_lines=True
    )
    result.add_column("check", ratio=3)
    for role, name in runs:
        result.add_column(f"{role}\n{escape(name)}", ratio=2)
    for check in spec.checks:
        cells = [
            _cell(row.outcome)
            for role, name in runs
            for row in rows
            if (row.check, row.role, row.run.name) == (check, role, name)
        ]
        result.add_row(escape(f"{check.code} {check.claim} ({check.unit})"), *cells)
    return result


def _cell(outcome: Outcome) -> str:
    text = f"[{_STYLES[outcome.answer]}]{outcome.answer}[/]"
    if outcome.observed is not None:
        text = f"{text} {outcome.observed:.4f} at step {outcome.step}"
    return f"{text}: {escape(outcome.reason)}" if outcome.reason else text


def verify(reference: str, place: Place, console: Console) -> int:
    """Print the table of a spec.

    Returns:
        0 if the fixed run passes every check, 1 if not; without a role "fixed",
        whether all runs do.

    Raises:
        InputError: a bad spec.
        MissingRuns: exit code 3.
    """
    spec = read_spec(reference)
    rows = compute(spec, place)
    console.print(table(spec, rows))
    judged = [row for row in rows if row.role == "fixed"] or rows
    answers = {row.outcome.answer for row in judged}
    if "failed" in answers:
        return EXIT_FAILED
    return EXIT_MISSING if "inconclusive" in answers else 0
