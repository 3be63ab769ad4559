"""Tags, params and the note of a run that a script logged."""

from __future__ import annotations

import json
import re

import pytest

from analysis.summary import SUMMARY_KEYS, Figure, RunSummary
from runners.mlflow_note import MAX_ALERTS, MAX_NOTE, MAX_ROWS, Outcome, run_note
from runners.mlflow_tags import closing_tags, run_params, run_tags
from runners.script.alerts import append_alert, make_alert
from runners.script.files import RunFiles
from runners.script.manifest import open_logged
from runners.settings import TrackingConfig
from tests.runners.test_mlflow_note import HOSTILE, SAFE

TRACKING = TrackingConfig(kind="mlflow", experiment="my project")


def manifest(**said):
    config = said.pop("config", {"lr": 0.1, "paths": {"data": None}, "n": [1, 2]})
    return open_logged("r", config, TRACKING, **said)


def test_every_key_of_a_scripts_config_is_a_param():
    assert dict(run_params(manifest())) == {
        "lr": "0.1",
        "paths.data": "null",
        "n": "[1, 2]",
    }


def test_what_the_script_said_is_a_tag():
    tags = run_tags(manifest(group="g", job_type="eval", tags=["a", "b"]))
    assert {
        "kind": "logged",
        "project": "my project",
        "group": "g",
        "job_type": "eval",
        "tags": "a, b",
        "tag.a": "true",
        "tag.b": "true",
    }.items() <= tags.items()
    few = run_tags(manifest())
    assert not {"group", "job_type", "tags", "injection"} & few.keys()
    assert all(isinstance(value, str) for value in few.values())


def test_the_closing_tags_say_what_is_no_number(tmp_path):
    assert closing_tags(tmp_path, manifest()) == {}
    found = manifest() | {
        "summary": {"verdict": "x" * 9000, "best": 1.0},
        "config_changes": [
            {"key": "lr", "before": 0.1, "after": 0.2, "step": 3},
            {"key": "lr", "before": 0.2, "after": None, "step": 9},
        ],
    }
    for title in ("one", "two"):
        append_alert(tmp_path, make_alert(title, "", "warn", 3))
    files = RunFiles(tmp_path)
    for _ in range(2):
        files.table("t", [{"a": 1}])
    tags = closing_tags(tmp_path, found)
    tables = json.loads(tags.pop("mlflow.loggedArtifacts"))
    assert tables == [
        {"path": f"artifacts/tables/{name}.json", "type": "table"}
        for name in ("t-2", "t")
    ]
    assert tags == {
        "summary.verdict": "x" * 5000,
        "config_changed.lr": "0.1 -> 0.2 -> null",
        "alerts": "2",
    }


def test_a_run_of_our_trainer_has_a_tag_for_each_changed_choice_only(tmp_path):
    assert closing_tags(tmp_path, {"config": {}}) == {}
    change = {"key": "steps", "before": 80, "after": 90, "step": 57}
    tags = closing_tags(tmp_path, {"config": {}, "config_changes": [change]})
    assert tags == {"config_changed.steps": "80 -> 90"}


def test_the_note_says_who_logged_what():
    said = manifest(group="g", job_type="eval", tags=["a", "b"], notes="a\nb")
    figures = {"summary/final_loss": Figure(1.0, 9), "summary/top 1": Figure(0.5, 7)}
    alerts = [make_alert("Loss is NaN", "look", "error", 8)]
    note = run_note(
        Outcome("r", "finished", None, RunSummary(10, figures)), said, {}, alerts
    )
    assert note == (
        "Logged by a script, project my project, group g, job type eval, tags a, b\n"
        "Notes: a b\n"
        "Status: **finished**, 10 steps recorded, no step is flagged\n"
        "\n"
        "Alerts (1, the newest first):\n"
        "\n"
        "- **error** at step 8: Loss is NaN: look\n"
        "\n"
        "| | &ensp;value | &ensp;step |\n"
        "|---|---|---|\n"
        "| final loss | &ensp;1 | &ensp;9 |\n"
        "| top 1 | &ensp;0.5 | &ensp;7 |"
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_a_script_says_is_text(text):
    plain, hostile = (
        run_note(
            Outcome("r", "failed", said, RunSummary(3, {f"summary/{said}": value})),
            manifest(group=said, job_type=said, notes=said) | {"tags": [said]},
            {},
            [make_alert(said, said, "warn", 1)],
        )
        for said, value in (("plain", Figure(1.0, 2)), (text, Figure(1.0, 2)))
    )
    assert hostile.count("\n") == plain.count("\n")
    for line, other in zip(hostile.splitlines(), plain.splitlines(), strict=True):
        kept = SAFE.pattern.join(map(re.escape, other.split("plain")))
        assert re.fullmatch(kept, line), line


def test_a_note_stays_below_what_mlflow_keeps():
    figures = {f"summary/{n}": Figure(1.0, n) for n in range(200)}
    alerts = [make_alert("<" * 500, "<" * 500, "warn", n) for n in range(50)]
    said = manifest(group="<" * 999, job_type="<" * 999, notes="<" * 9999)
    outcome = Outcome("r", "failed", "<" * 9999, RunSummary(3, figures))
    note = run_note(outcome, said, {}, alerts)
    assert len(note) <= MAX_NOTE
    assert "Alerts (50, the newest first)" in note
    assert note.count("**warn**") <= MAX_ALERTS
    short = run_note(Outcome("r", "failed", None, RunSummary(3, figures)), manifest())
    assert f"and {200 - MAX_ROWS} more of the summary" in short
    assert len(SUMMARY_KEYS) < MAX_ROWS
