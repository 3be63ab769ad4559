"""From the description of a page to one HTML file that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.dashboard.payload import Payload

MAX_TEXT = 2000  # characters of one text; a page with a longer name is no page
_ASSETS = Path(__file__).parent / "assets"
_STYLES = ("uPlot.min.css", "page.css")
_SCRIPTS = (
    "uPlot.iife.min.js",
    "dom.js",
    "payload.js",
    "format.js",
    "lines.js",
    "canvas.js",
    "chart.js",
    "legend.js",
    "batch.js",
    "page.js",
)


def render(page: dict[str, Any], payload: Payload) -> str:
    """The page as HTML.

    Text of the page is escaped by the template; our own style and script, the JSON
    without a "<" in it and the base64 of the numbers are put in as they are. Scripts
    and styles run only if their hash is that of ours (a Content-Security-Policy), and
    nothing may be fetched.

    Args:
        page: plain JSON, as ``analysis.dashboard.pages`` makes it.
        payload: its numbers.
    """
    style, script, page = _joined(_STYLES), _joined(_SCRIPTS), _plain(page)
    text = json.dumps(page | {"payload": payload.index}, allow_nan=False)
    return _template().render(
        page=page,
        style=style,
        script=script,
        policy=_policy(style, script),
        json=text.replace("&", "\\u0026").replace("<", "\\u003c"),
        numbers=payload.encoded(),
    )


def _plain(part: Any) -> Any:
    """The same JSON, every text of it short enough and possible to write as UTF-8."""
    if isinstance(part, str):
        short = part if len(part) <= MAX_TEXT else f"{part[: MAX_TEXT - 1]}…"
        # Half a surrogate pair, which JSON may name, has no place in a file.
        whole = short.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return _TURNING.sub("\N{REPLACEMENT CHARACTER}", whole)
    if isinstance(part, dict):
        return {key: _plain(value) for key, value in part.items()}
    return [_plain(one) for one in part] if isinstance(part, list | tuple) else part


# Control characters, and those that turn the direction of the text after them.
_TURNING = re.compile("[\0-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@cache
def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


@cache
def _joined(names: tuple[str, ...]) -> str:
    """Files of the assets one after another, as they stand between their tags."""
    text = "\n".join((_ASSETS / name).read_text("utf-8") for name in names)
    return f"\n{text}\n"


def _policy(style: str, script: str) -> str:
    parts = ["default-src 'none'", "base-uri 'none'", "form-action 'none'"]
    parts += [f"script-src {_hash(script)}", f"style-src {_hash(style)}"]
    return "; ".join(parts)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
