"""MLflow's own UI in a real browser: notes, colours and the saved view."""

from __future__ import annotations

import json
import subprocess

import pytest
from playwright.sync_api import sync_playwright

from runners.folders import read_link
from runners.mlflow_note import page as page_of
from runners.mlflow_tags import run_color
from runners.mlflow_view import address
from runners.tracker import COMMAND
from tests.runners.commands import run
from tests.runners.memory_store import a_sweep, change

pytestmark = pytest.mark.slow

HOSTILE = (
    "<script>alert(1)</script> <img src=x onerror=alert(2)> "
    "[x](javascript:alert(3)) | `a` **b**"
)
NAME = "<img src=x onerror=alert(4)> _a_ | [y](javascript:alert(5))"


@pytest.fixture
def tracked(root):
    """A sweep of two runs in a real store, one of them with a name to beware of."""
    steps = ("steps=30", "injection_step=20")
    healthy = run("name=healthy", *steps, root=root).folder
    broken = run("name=broken", "injection=scale", *steps, root=root).folder
    sweep = a_sweep(healthy, "failed", NAME)
    change(broken, sweep="s-1", name=NAME, status="failed", error=HOSTILE)
    messages = [
        {
            "uri": f"sqlite:///{root / 'mlflow.db'}",
            "experiment": "lab",
            "root": str(root),
        },
        {"sweep": str(sweep)},
        *({"folder": str(folder)} for folder in (healthy, broken)),
    ]
    lines = "".join(json.dumps(message) + "\n" for message in messages)
    subprocess.run(COMMAND, input=lines, text=True, check=True, capture_output=True)
    return [read_link(folder) for folder in (healthy, broken)]


@pytest.fixture
def look(tracked, serve, port, chromium):
    """Opens an address of the UI; a dialog that a script opens fails the test."""
    serve()
    dialogs = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )

        def open_page(where):
            tab = browser.new_page(viewport={"width": 1800, "height": 1000})
            tab.on("dialog", lambda box: (dialogs.append(box.message), box.dismiss()))
            tab.goto(f"http://127.0.0.1:{port}/{where}")
            return tab

        yield open_page
        browser.close()
    assert dialogs == []


def rgb(color: str) -> str:
    return "rgb({}, {}, {})".format(*(int(color[at : at + 2], 16) for at in (1, 3, 5)))


def test_a_note_is_rendered_and_hostile_text_in_it_is_text(look, tracked):
    _, broken = tracked
    tab = look(page_of(broken["experiment_id"], broken["run_id"]))
    tab.get_by_text("Reason: ").wait_for(timeout=60_000)
    assert tab.locator("strong", has_text="scale").count()
    assert tab.locator("td", has_text="largest pre-clip norm").count()
    assert HOSTILE in tab.inner_text("body")
    assert (
        tab.locator('a[href^="javascript"], img[src="x"], script[src="x"]').count() == 0
    )

    tab = look(page_of(broken["experiment_id"], broken["parent"]))
    tab.locator("p", has_text="Swept: ").wait_for(timeout=60_000)
    assert (
        tab.locator(f'td a[href="{page_of("1", broken["run_id"])}"]').inner_text()
        == NAME
    )
    assert tab.locator('a[href^="javascript"], img[src="x"]').count() == 0


def test_the_table_has_its_columns_and_colours_and_the_charts_their_order(
    look, tracked
):
    tab = look(address(tracked[0]["experiment_id"]))
    tab.get_by_text("summary/largest_grad_norm").wait_for(timeout=60_000)
    for title in ("injection", "clip", "loader", "seed", "summary/flagged_steps"):
        assert tab.get_by_role("columnheader", name=title, exact=True).count(), title
    assert tab.get_by_role("link", name="healthy").count() == 1  # not folded away
    for kind in ("none", "scale"):
        dots = tab.evaluate(
            "color => [...document.querySelectorAll('*')].filter("
            "one => getComputedStyle(one).backgroundColor === color).length",
            rgb(run_color(kind)),
        )
        assert dots == 1, kind

    tab = look(address(tracked[0]["experiment_id"], "sweep-s-1", charts=True))
    tab.get_by_text("summary/largest_grad_norm").wait_for(timeout=60_000)
    shown = tab.inner_text("body")
    assert shown.index("summary/largest_grad_norm") < shown.index("Gradients")
    assert "2 matching runs" in shown
    assert "No charts in this section" not in shown
