"""A sentence a check: whether it tells broken runs from healthy ones."""

import pytest

from analysis.findings import tells_apart
from analysis.verification import Check, Outcome

CHECK = Check(
    code="VF001",
    claim="small",
    kind="max_in_window",
    column="train/loss",
    first=0,
    last=None,
    limit=1.0,
    by_setting="clip",
)
PASSED, FAILED = Outcome("passed", 0.5, 3), Outcome("failed", 2.0, 3)
UNKNOWN = Outcome("inconclusive", reason="too short")


@pytest.mark.parametrize(
    ("broken", "healthy", "sentence"),
    [
        ([FAILED], [PASSED, PASSED], "tells the broken run from the healthy ones"),
        ([PASSED], [PASSED], "passes the broken run like the healthy ones"),
        ([FAILED, PASSED], [PASSED], "passes the broken run like the healthy ones"),
        ([FAILED], [PASSED, FAILED], "fails the broken run, and 1 of 2 healthy"),
        ([PASSED], [FAILED, FAILED], "passes the broken run and fails 2 of 2"),
        ([PASSED], [UNKNOWN], "not known to tell anything apart: a run is"),
        ([UNKNOWN], [PASSED], "not known to tell anything apart: a run is"),
        ([], [PASSED], "not known to tell anything apart: no broken"),
        ([FAILED], [], "not known to tell anything apart: no broken"),
    ],
)
def test_the_sentence_follows_from_the_answers(broken, healthy, sentence):
    assert tells_apart(CHECK, broken, healthy).startswith(sentence)


@pytest.mark.parametrize(
    "reason",
    ["true by construction (clip 0.5)", "by its setting (clip 1.0), not its behaviour"],
)
def test_a_check_that_a_setting_decides_is_called_so(reason):
    decided = Outcome("failed", 1.0, 0, reason)
    said = tells_apart(CHECK, [decided], [PASSED])
    assert said.endswith("; the setting clip decides it, not the run")
    assert "decides" not in tells_apart(CHECK, [FAILED], [PASSED])
