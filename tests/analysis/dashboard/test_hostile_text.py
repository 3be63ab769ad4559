"""Text of a run that would like to be markup."""

import json

import numpy as np
import pytest

from analysis.dashboard.pages import draw_comparison, draw_dashboard
from minigpt import records as col
from tests.analysis.dashboard.page_checks import check
from tests.analysis.dashboard.runs import (
    full,
    history,
    visible,
)

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}{% raw %}${7*7}",
    "<!--<script>",
    "]]>&amp;&lt;'\"`",
    "a\u2028b\u2029c\u0000\x1b[31m",
    "\ud800 half \udfff",
    "🙂" * 9,
]


def hostile_run(text, folder, **options):
    """A run in which everything that is text is this one."""
    printable = "".join(char for char in text if char.isprintable())
    flat = {col.TRAIN_LOSS: np.r_[np.ones(199), np.nan]}
    for prefix in (*col.PER_TENSOR, col.ACT_MAX_ABS):
        flat[prefix + printable] = np.ones(200)
    flat[f"{col.EXP_AVG_SQ_SUM}{printable}"] = np.r_[np.ones(100), np.full(100, 9.0)]
    tokens = [np.array([1, 2], np.uint16)] * 200
    arrays = {col.BATCH_TOKENS: tokens, col.BATCH_ROW_LENGTHS: [np.array([2])] * 200}
    pieces = {
        "model": {"vocab": {text: 1}},
        "added_tokens": [{"id": 2, "content": text}],
    }
    (folder / "vocabulary.json").write_text(json.dumps(pieces))
    facts = {"vocabulary": "vocabulary.json", "precision": text, "optimizer": "adamw"}
    return history(
        flat,
        arrays,
        folder=folder,
        name=text,
        notes=[text],
        **(facts | {"schedule": {text: text}} | options),
    )


UNSHOWN = {*"\ud800\udfff", "\x00", "\x1b", "\u202e", "\u2066"}


@pytest.mark.parametrize("text", [*HOSTILE, "run\u202ename\u2066"])
def test_text_stays_text(tmp_path, text):
    run = hostile_run(text, tmp_path)
    manifest = {"config": {text: {text: text}}, "versions": {text: text}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    pages = [draw_dashboard(run, run), draw_comparison([run, full(3)])]
    for page in pages:
        described = check(page)
        kind = described["kind"]
        plain = draw_dashboard(run_of_a(tmp_path), run_of_a(tmp_path))
        if kind == "comparison":
            (tmp_path / "manifest.json").write_text('{"config": {"a": {"a": "a"}}}')
            plain = draw_comparison([run_of_a(tmp_path), full(3)])
        assert markup(page) == markup(plain)  # not one tag more
        assert "49" not in described["title"]
        # half characters, control characters and those that turn the text around
        shown = "".join("\ufffd" if one in UNSHOWN else one for one in text)
        assert described["runs"][0] == shown
        assert shown in visible(page)


def run_of_a(folder):
    return hostile_run("a", folder)


def markup(page):
    """The names of all tags, in order, as the browser's parser would see them."""
    from html.parser import HTMLParser

    found = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.append((tag, sorted(name for name, _ in attrs)))

        def handle_endtag(self, tag):
            found.append(tag)

        def handle_comment(self, data):
            found.append("comment")

    Parser().feed(page)
    # Of the choices, the hostile manifest has one row more: its versions.
    return [one for one in found if one not in ROW]


ROW = ["tr", "td", "th", ("tr", []), ("td", []), ("th", ["scope"])]


def test_texts_are_cut_before_they_fill_the_page(tmp_path):
    long = "x" * 100_000
    run = hostile_run("a", tmp_path, precision=long)
    object.__setattr__(run, "name", long)
    (tmp_path / "manifest.json").write_text(json.dumps({"config": {"a": long}}))
    text = draw_dashboard(run, run)
    check(text)
    assert len(text) < 500_000
    text = draw_comparison([run] * 20)
    check(text)
    assert len(text) < 3_000_000
