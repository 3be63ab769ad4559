"""The dashboard pictures of the README, taken of the lab's runs in `experiments/`.

    python -m tests.browser.pictures

MLflow's own pages are in docs/mlflow.md.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

FOLDER = Path("docs/img")
COLOURS = 128  # of a picture; more would only make the file larger
# name -> (run, view, what to take, as a selector; None is the window)
PICTURES = {
    "dashboard": ("19-injection-A", "#step=500", None),
    "a-panel-3": ("19-injection-A", "#marks=off&step=0", "#panel-3"),
    "b-panel-b": ("19-injection-B", "#marks=off&step=0", "#panel-B .charts"),
    "c-panel-m": ("19-injection-C", "#marks=off&step=0", "#panel-M .charts"),
    "c-panel-6": ("19-injection-C", "#marks=off&step=0", "#panel-6 .charts"),
}


def main() -> int:
    """Take every picture; 2 if a dashboard is missing."""
    runs = {run for run, *_ in PICTURES.values()}
    paths = {run: Path("experiments") / run / "dashboard.html" for run in runs}
    if missing := [str(path) for path in paths.values() if not path.is_file()]:
        print(f"expected the dashboards of `make lab`, missing: {', '.join(missing)}")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, (run, view, what) in PICTURES.items():
            page = opened(browser, paths[run], view)
            save(page.locator(what) if what else page, name)
        browser.close()
    return 0


def opened(browser: Browser, path: Path, view: str) -> Page:
    page = browser.new_page(viewport={"width": 1280, "height": 1150})
    page.goto(f"file://{path.resolve()}{view}")
    page.wait_for_selector("html[data-ready]", state="attached")
    return page


def save(what, name: str) -> None:
    image = Image.open(io.BytesIO(what.screenshot())).convert("RGB")
    small = image.quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    sys.exit(main())
