"""``autopsy doctor``: looks at what a run stands on, and changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from runners.doctor.check import NOT_APPLICABLE, OK, PROBLEM, WARNING, Check
from runners.doctor.environment import check_environment
from runners.doctor.folder import check_folder
from runners.doctor.runs import check_runs
from runners.doctor.store import check_store, store_address
from runners.report import say
from runners.tracked import Place

_STYLES = {OK: "green", WARNING: "yellow", PROBLEM: "bold red", NOT_APPLICABLE: "dim"}


def doctor(place: Place, console: Console) -> int:
    """Print one row a check.

    Returns:
        0; 1 if there is a problem. Warnings are none.

    Raises:
        InputError: the root's name cannot be part of a store's address.
    """
    address = store_address(place)
    checks = [
        *check_environment(address),
        *check_folder(place.root),
        *check_store(address),
        *check_runs(place.root),
    ]
    console.print(_table(checks))
    for check in checks:
        if check.answer in (PROBLEM, WARNING):  # whole lines, to be copied
            advice = f"; to do: {check.advice}" if check.advice else ""
            say(console, f"{check.answer}: {check.name}: {check.found}{advice}")
    say(console, _sentence(checks))
    return int(any(check.answer == PROBLEM for check in checks))


def _table(checks: Sequence[Check]) -> Table:
    table = Table(show_lines=False)
    table.add_column("check", overflow="fold")
    table.add_column("answer", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("what to do", overflow="fold")
    for check in checks:
        answer = Text(check.answer, style=_STYLES[check.answer])
        # as plain text: a name in brackets is no markup
        table.add_row(Text(check.name), answer, Text(check.found), Text(check.advice))
    return table


def _sentence(checks: Sequence[Check]) -> str:
    counts = Counter(check.answer for check in checks)
    if not counts[PROBLEM] + counts[WARNING]:
        return "nothing to do"
    return ", ".join(
        f"{counts[answer]} {answer}{'s' * (counts[answer] != 1)}"
        for answer in (PROBLEM, WARNING)
    )
