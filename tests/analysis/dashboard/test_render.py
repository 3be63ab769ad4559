"""One file that asks nobody for anything, and runs no script but its own."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from analysis.dashboard import render
from analysis.dashboard.pages import draw_comparison, draw_dashboard
from analysis.dashboard.payload import Payload
from tests.analysis.dashboard.runs import full, page_json


@pytest.fixture(scope="module", params=["run", "comparison"])
def page(request):
    if request.param == "run":
        return draw_dashboard(full(30), full(20))
    return draw_comparison([full(30), full(20)])


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of scripts and styles."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.blocks, self._inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else None
        if self._inside:
            self.blocks.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside:
            self.blocks[-1][2] += data


def policy(page):
    (found,) = (
        attrs["content"]
        for tag, attrs in Tags(page).tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    return dict(part.split(" ", 1) for part in found.split("; "))


def digest(text):
    return (
        "'sha256-"
        + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        + "'"
    )


def test_the_policy_allows_the_inlined_script_and_style_alone(page):
    blocks = Tags(page).blocks
    code = [text for tag, attrs, text in blocks if tag == "script" and not attrs]
    data = [attrs["type"] for tag, attrs, _ in blocks if tag == "script" and attrs]
    styles = [text for tag, _, text in blocks if tag == "style"]
    assert (len(code), len(styles)) == (1, 1)
    assert data == ["application/json", "text/plain"]
    assert policy(page) == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "script-src": digest(code[0]),
        "style-src": digest(styles[0]),
    }


def test_the_policy_stands_before_what_it_governs(page):
    assert page.index("Content-Security-Policy") < page.index("<style>")
    assert page.index("<meta charset") < 200


def test_nothing_is_fetched(page):
    loading = {"src", "href", "srcset", "action", "data", "poster", "background"}
    links = [
        (tag, attrs[name])
        for tag, attrs in Tags(page).tags
        for name in loading & attrs.keys()
    ]
    assert links == [("a", "#panels")]
    without_comments = re.sub(r"/\*.*?\*/", "", page, flags=re.DOTALL)
    assert (
        re.findall(
            r"https?://|url\(|@import|\bimport\(|fetch\(|XMLHttp", without_comments
        )
        == []
    )


def test_no_handler_or_style_stands_in_a_tag(page):
    """The policy would refuse them, and the page be silently broken."""
    for tag, attrs in Tags(page).tags:
        odd = [name for name in attrs if name.startswith("on") or name == "style"]
        assert not odd, tag


def test_ids_are_unique(page):
    ids = [attrs["id"] for _, attrs in Tags(page).tags if "id" in attrs]
    assert sorted(ids) == sorted(set(ids))


def test_the_json_cannot_leave_its_tag():
    odd = "</script><!--<script>&\u2028"
    page = draw_dashboard(full(3, name=odd))
    (text,) = re.findall(r'id="page">(.*?)</script>', page, re.DOTALL)
    assert "<" not in text
    assert "&" not in text
    assert text.isascii()
    assert json.loads(text)["title"] == odd


def test_a_number_that_json_lacks_is_an_error_of_ours():
    page = page_json(draw_dashboard(full(3)))
    del page["payload"]
    page["panels"][0]["charts"][0]["span"] = [float("nan"), 1.0]
    with pytest.raises(ValueError, match="not JSON compliant"):
        render.render(page, Payload())


def test_a_key_that_the_template_needs_is_an_error_of_ours():
    with pytest.raises(Exception, match=r"undefined|no attribute"):
        render.render({"title": "x"}, Payload())


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a", "a"),
        ("\ud800", "\ufffd"),
        ("x\udfffy", "x\ufffdy"),
        ("🙂", "🙂"),
        ("x" * render.MAX_TEXT, "x" * render.MAX_TEXT),
        ("x" * (render.MAX_TEXT + 1), "x" * (render.MAX_TEXT - 1) + "…"),
    ],
)
def test_texts_are_short_and_can_be_written(text, plain):
    assert render._plain({"a": [text, (text, 1, None)]}) == {
        "a": [plain, [plain, 1, None]]
    }


def test_every_asset_is_in_the_page(page):
    """A script that is not named in render.py would be forgotten without a word."""
    scripts = {path.name for path in render._ASSETS.glob("*.js")}
    styles = {path.name for path in render._ASSETS.glob("*.css")}
    assert scripts == set(render._SCRIPTS)
    assert styles == set(render._STYLES)
    for name in (*render._SCRIPTS, *render._STYLES):
        assert (render._ASSETS / name).read_text("utf-8") in page
