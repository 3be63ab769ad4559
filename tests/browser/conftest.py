"""A real Chromium, and pages that may neither complain nor ask the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from analysis.dashboard.pages import draw_dashboard
from analysis.history import load
from tests.analysis.dashboard.long_run import long_run
from tests.runners.commands import run

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
K, STEPS = 130, 200


@pytest.fixture
def browser(chromium) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        yield started
        started.close()


@pytest.fixture
def visit(browser) -> Iterator[Callable[..., Page]]:
    """Opens a file; at the end nothing may have been wrong on any page."""
    seen: list[str] = []

    def open_page(path: Path, view: str = "", size=WIDE, theme="light") -> Page:
        context = browser.new_context(viewport=size, color_scheme=theme)
        page = context.new_page()
        page.on("console", lambda message: seen.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.on("dialog", lambda dialog: seen.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:", "blob:"))
                else seen.append(f"request: {request.url}")
            ),
        )
        page.goto(f"file://{path}{view}")
        page.wait_for_selector("html[data-ready]", state="attached", timeout=30_000)
        return page

    yield open_page
    assert seen == []


@pytest.fixture(scope="session")
def pages(tmp_path_factory) -> SimpleNamespace:
    """Dashboards of short real trainings, drawn once; ``runs`` has their records."""
    root = tmp_path_factory.mktemp("browser")
    fault = ("injection_step=130", f"steps={STEPS}")
    wild = ("schedule.lr_max=1e6", "schedule.warmup_steps=1", "steps=60")
    plans = {
        "twin": [f"steps={STEPS}"],
        "A": ["injection=scale", *fault],
        "B": ["injection=bad_batch", *fault],
        "C": ["injection=v_corrupt", *fault],
        "nan": wild,
        "three": ["steps=3"],
    }
    folders = {
        name: run(f"name={name}", *plan, root=root).folder
        for name, plan in plans.items()
    }
    runs = {name: load(folder) for name, folder in folders.items()}
    paths = {}
    for name, record in runs.items():
        baseline = runs["twin"] if name in "ABC" else None
        paths[name] = root / f"{name}.html"
        paths[name].write_text(draw_dashboard(record, baseline), "utf-8")
    return SimpleNamespace(paths=paths, runs=runs, folders=folders, root=root)


@pytest.fixture(scope="session")
def million(tmp_path_factory) -> SimpleNamespace:
    """A record of a million steps with three odd ones, and its page."""
    record = long_run(1_000_000, tensors=3, name="million")
    record.data.flat["train/loss"][600_000] = 9.0
    record.data.flat["optim/grad_norm_preclip"][123_456] = 500.0
    record.data.flat["optim/grad_norm_preclip"][800_000] = float("nan")
    # Odd in a line that nothing flags: only thinning must not lose it.
    record.data.flat["update_norm/blocks.1.weight"][345_678] = 77.0
    path = tmp_path_factory.mktemp("million") / "million.html"
    path.write_text(draw_dashboard(record), "utf-8")
    return SimpleNamespace(path=path, record=record)
