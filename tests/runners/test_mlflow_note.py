"""Notes in MLflow: what they say, how long they get, and that text stays text."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import summary as keys
from analysis.flags import Flag
from analysis.summary import Figure, RunSummary
from runners.mlflow_note import (
    MAX_NOTE,
    Outcome,
    escaped,
    linked,
    page,
    run_note,
    sweep_note,
)

CONFIG = {
    "injection": {"kind": "scale"},
    "injection_step": 300,
    "clip": 0.5,
    "loader": {"kind": "random"},
    "seed": 42,
    "data_seed": 42,
    "steps": 600,
}
RUN = {"config": CONFIG}
SUMMARY = RunSummary(
    600,
    {
        keys.FINAL_LOSS: Figure(1.47436, 599),
        keys.LARGEST_NORM: Figure(86.7916, 300),
        keys.DUPLICATES: Figure(8.0, 300),
        keys.FLAGGED: Figure(1.0, 599),
    },
    (Flag(300, ("gradient norm",), ("gradient norm 86.79, robust z 30.7",)),),
)
HOSTILE = [
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    "![x](http://127.0.0.1/x.png)",
    "a | b |\n|---|---|\n| c | d |",
    "`code` ```fence``` ~~~",
    "# head\n- list\n1. one\n> quote\n---\n===",
    "*a* _b_ **c** __d__ ~~e~~",
    "&lt;b&gt; &amp; &#60;i&#62;",
    "http://example.org www.example.org @someone #1 :smile:",
    "\\<img src=x onerror=alert(1)> \\\\",
    "</td></tr></table><iframe src=javascript:alert(1)>",
    "¨D ¨E60E $ %",
    "\u202eevil\u2066 \x00\x07",
]
# All that Markdown or HTML could read as more than text.
SAFE = re.compile(
    r"(?:[A-Za-z0-9]-(?=[A-Za-z0-9])|[0-9]\.(?=[0-9])|&#\d+;|[^\W_]|[ ,])*"
)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_character_with_a_meaning_is_left(text):
    assert SAFE.fullmatch(escaped(text)), escaped(text)
    shown = unescape(escaped(text))
    plain = " ".join(text.split())
    assert shown == "".join(c if c.isprintable() else "\ufffd" for c in plain)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_shown_as_it_is_on_one_line(text):
    assert SAFE.fullmatch(escaped(text))
    plain = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    shown = unescape(escaped(text, 10**6))
    assert shown == plain


def test_a_name_is_still_read_with_the_eye():
    assert escaped("scale-clip0.5-random-s42") == "scale-clip0.5-random-s42"


def test_long_text_is_cut_before_it_is_escaped():
    assert unescape(escaped("<" * 999, 10)) == "<<<<<<<..."


def test_the_note_of_a_run():
    links = {"the sweep": "#/x"}
    assert run_note(Outcome("n", "finished", None, SUMMARY), RUN, links) == (
        "Fault: **scale** at step 300, clip 0.5, loader random, seed 42, 600 steps\n"
        "Status: **finished**, 600 of 600 steps recorded, flagged: **300**\n"
        "[the sweep](#/x)\n"
        "\n"
        "| | &ensp;value | &ensp;step |\n"
        "|---|---|---|\n"
        "| final loss | &ensp;1.474 | &ensp;599 |\n"
        "| largest pre-clip norm after the warmup | &ensp;86.79 | &ensp;300 |\n"
        "| most duplicate rows in a batch | &ensp;8 | &ensp;300 |\n"
        "\n"
        "Flagged steps:\n"
        "\n"
        "- step 300: gradient norm 86.79, robust z 30.7"
    )


def test_a_run_without_fault_clip_or_flag_says_so():
    config = CONFIG | {"injection": {"kind": "none"}, "clip": None, "data_seed": 7}
    summary = RunSummary(600, {}, ())
    note = run_note(Outcome("n", "finished", None, summary), {"config": config})
    assert note == (
        "**No fault**, no clipping, loader random, seed 42, data seed 7, 600 steps\n"
        "Status: **finished**, 600 of 600 steps recorded, no step is flagged"
    )


def test_a_running_run_and_one_without_a_step():
    assert run_note(Outcome("n", "running"), RUN).endswith("Status: **running**")
    note = run_note(Outcome("n", "killed", "KeyboardInterrupt"), RUN)
    assert note.endswith(
        "Status: **killed**, 0 of 600 steps recorded\nReason: KeyboardInterrupt"
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_everything_of_a_run_is_escaped_in_both_notes(text):
    config = CONFIG | {"injection": {"kind": text}, "loader": {"kind": text}}
    config |= {key: text for key in ("clip", "seed", "data_seed", "steps")}
    config["injection_step"] = text
    flag = Flag(3, ("x",), (text,))
    outcome = Outcome(text, text, text, RunSummary(4, {}, (flag,)))
    benign = Outcome("n", "n", "n", RunSummary(4, {}, (Flag(3, ("x",), ("n",)),)))
    plain = {key: "n" for key in CONFIG} | {
        "injection": {"kind": "n"},
        "loader": {"kind": "n"},
        "data_seed": "n",
    }
    for hostile, harmless in [
        (run_note(outcome, {"config": config}), run_note(benign, {"config": plain})),
        (
            sweep_note(text, [("#/1", outcome)], {"x": "#/y"}),
            sweep_note("n", [("#/1", benign)], {"x": "#/y"}),
        ),
    ]:
        # the same markup around it, and nothing of it from the text
        marks = re.compile(r"[^\w\s,&#;]")
        assert marks.findall(drop(hostile)) == marks.findall(drop(harmless))
        assert hostile.count("\n") == harmless.count("\n")


def drop(note: str) -> str:
    """The note without the references and words that stand for text."""
    note = re.sub(r"&#\d+;|&ensp;", "", note)
    return re.sub(r"(?<=[A-Za-z0-9])[-.](?=[A-Za-z0-9])|_", "", note)


def test_a_note_of_many_flags_says_how_many_more():
    flags = tuple(Flag(step, ("x",), ("<" * 200,)) for step in range(300))
    note = run_note(Outcome("n", "finished", None, RunSummary(300, {}, flags)), RUN)
    assert 7000 > len(note) > MAX_NOTE - 2000 or len(note) <= MAX_NOTE
    shown = note.count("- step ")
    assert 0 < shown < 300
    assert note.endswith(f"\n\nand {300 - shown} more")
    assert "flagged: **0, 1, 2, 3, 4, ...**" in note


def test_the_note_of_a_sweep():
    rows = [("#/1", Outcome("a_b", "finished", None, SUMMARY)), ("#/2", None)]
    assert sweep_note("clip=0.5,1.0", rows, {"table": "#/t", "curves": "#/c"}) == (
        "Swept: **clip&#61;0.5,1.0**\n"
        "\n"
        "[table](#/t) · [curves](#/c)\n"
        "\n"
        "| run | &ensp;status | &ensp;final loss | &ensp;largest norm | "
        "&ensp;flagged steps |\n"
        "|---|---|---|---|---|\n"
        "| [a&#95;b](#/1) | &ensp;finished | &ensp;1.474 | &ensp;86.79 | &ensp;1 |\n"
        "| [a run](#/2) | not complete here | | | |"
    )


@pytest.mark.parametrize("count", [16, 1000])
def test_the_note_of_a_large_sweep_fits_into_a_tag(count):
    outcome = Outcome("<" * 120, "finished", None, SUMMARY)
    rows = [(page("1", "f" * 32), outcome)] * count
    note = sweep_note("x=" * 2000, rows, {})
    assert len(note) <= 8000
    shown = note.count(f"({page('1', 'f' * 32)})")
    assert note.endswith(f"\n\nand {count - shown} more")


def test_sixteen_runs_with_names_of_ours_are_all_in_the_table():
    name = "bad_batch-clip0.5-stratified-s42-k300-n600"
    rows = [(page("1", "f" * 32), Outcome(name, "finished", None, SUMMARY))] * 16
    assert sweep_note("x", rows, {}).count("finished") == 16


def test_an_address_holds_nothing_but_ids():
    assert page("1", "ab", "dashboard.html") == (
        "#/experiments/1/runs/ab/artifacts/dashboard.html"
    )
    assert page("1) [x](", "a/b") == "#/experiments/1%29%20%5Bx%5D%28/runs/a%2Fb"


def test_a_link_is_added_to_a_note_once_and_at_the_top():
    note = run_note(Outcome("n", "finished", None, SUMMARY), RUN)
    more = linked(note, "dashboard", "#/d")
    assert more.split("\n\n")[0].endswith("flagged: **300**\n[dashboard](#/d)")
    assert more.split("\n\n")[1:] == note.split("\n\n")[1:]
    assert linked(more, "dashboard", "#/d") == more
