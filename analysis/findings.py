"""What the answers of a check say about the check itself, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.verification import Check, Outcome

_SETTING = ("true by construction", "by its setting")


def tells_apart(
    check: Check, broken: Sequence[Outcome], healthy: Sequence[Outcome]
) -> str:
    """Whether a check tells the broken runs from the healthy ones.

    A check that both sides pass has shown nothing by being passed; one that healthy
    runs fail asks for more than health.

    Args:
        check: which.
        broken: its outcomes on the runs with the fault.
        healthy: its outcomes on runs without one.
    """
    outcomes = [*broken, *healthy]
    if not (broken and healthy):
        return "not known to tell anything apart: no broken or no healthy run"
    if any(outcome.answer == "inconclusive" for outcome in outcomes):
        return "not known to tell anything apart: a run is inconclusive"
    caught, refused = _failures(broken), _failures(healthy)
    some = f"{refused} of {len(healthy)} healthy ones"
    if not refused and caught == len(broken):
        sentence = "tells the broken run from the healthy ones"
    elif not refused:
        sentence = "passes the broken run like the healthy ones: it tells nothing"
    elif caught == len(broken):
        sentence = f"fails the broken run, and {some} too: it tells nothing"
    else:
        sentence = f"passes the broken run and fails {some}"
    if any(outcome.reason.startswith(_SETTING) for outcome in outcomes):
        sentence += f"; the setting {check.by_setting} decides it, not the run"
    return sentence


def _failures(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.answer == "failed" for outcome in outcomes)
