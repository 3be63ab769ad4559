"""What a command says of its runs at the end: one line a run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from runners.closing import RunResult
from runners.tracker import Shipped


def say(console: Console, line: str) -> None:
    """Print one line as it is: not wrapped, coloured or read as markup."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def report_runs(
    console: Console, results: Sequence[RunResult], shipped: Sequence[Shipped]
) -> None:
    """What was recorded of each run and its id in MLflow; what is not in MLflow."""
    answers = {answer.folder: answer for answer in shipped}
    for result in results:
        say(console, _line(result, answers.get(result.folder.resolve())))
        if result.status != "finished":
            say(console, f"autopsy train resume={result.folder.name} goes on with it")
    problems: dict[str, list[str]] = {}
    for answer in shipped:
        if answer.problem:
            names = problems.setdefault(answer.problem, [])
            names += [answer.folder.name] if answer.folder else []
    for problem, names in problems.items():
        which = f"{', '.join(names)}: " if names else ""
        say(console, f"not complete in MLflow: {which}{problem}")
    if problems:
        say(console, "nothing recorded is lost: `autopsy sync` completes MLflow")


def _line(result: RunResult, answer: Shipped | None) -> str:
    line = (
        f"{result.folder}: {result.status}, {result.steps} steps, "
        f"final loss {result.final_loss:.4f}"
    )
    if result.error:
        line += f" ({' '.join(result.error.split())})"
    if result.violations:
        kinds = (f"{n} x {kind}" for kind, n in sorted(result.violations.items()))
        line += f", rare tokens twice in a batch: {', '.join(kinds)}"
    if answer and answer.run_id:
        line += f", MLflow run {answer.run_id} ({answer.points} points a curve)"
    return line
