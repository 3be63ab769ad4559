"""Where runs were resumed, for a page to show."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.history import RunHistory

MOST_SEAMS = 60  # more lines than this would cover the curves
_NAMED = 5


def seams(runs: Sequence[RunHistory]) -> list[int]:
    """Steps at which any of the runs was resumed, ascending, each once."""
    found = {
        step
        for run in runs
        for step in run.facts.resumed_at
        if len(run) and run.steps[0] <= step <= run.steps[-1]
    }
    return sorted(found)[:MOST_SEAMS]


def seam_notes(run: RunHistory) -> list[str]:
    """A sentence about the resumes of a run; none if it was never resumed."""
    steps = sorted(set(run.facts.resumed_at))
    if not steps:
        return []
    named = ", ".join(f"{step:,}" for step in steps[:_NAMED])
    more = f" and {len(steps) - _NAMED} more" if len(steps) > _NAMED else ""
    return [
        f"the run was resumed at step {named}{more}, where a long-dashed line stands"
    ]
