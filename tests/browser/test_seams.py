"""The line where a run went on, as a browser draws it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.dashboard.pages import draw_dashboard
from tests.analysis.dashboard.runs import history
from tests.browser.test_dashboard_page import hide_marks, legend
from tests.browser.test_truth import PIXEL, close, colour

pytestmark = pytest.mark.slow

SEAM = 60


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_seam_stands_at_its_step_also_without_marks(visit, tmp_path, theme):
    run = history({"optim/lr": np.linspace(1e-4, 2e-4, 100)})
    run = replace(run, facts=replace(run.facts, resumed_at=(SEAM,)))
    path = tmp_path / "seam.html"
    path.write_text(draw_dashboard(run), "utf-8")
    page = visit(path, "#step=0", theme=theme)
    muted, ground = np.array(colour(page, "--muted")), np.array(colour(page, "--card"))
    faint = (0.6 * muted + 0.4 * ground).tolist()

    def seen(step):
        heights = np.linspace(1.1e-4, 1.5e-4, 25).tolist()  # below the line
        pixels = [page.evaluate(PIXEL, ["lr", step, y, 0]) for y in heights]
        return sum(close(pixel, faint) for pixel in pixels)

    assert seen(SEAM) > 12  # long dashes: more line than gap
    assert seen(SEAM - 7) == seen(SEAM + 7) == 0
    hide_marks(page)
    assert seen(SEAM) > 12
    assert "was resumed at step 60" in page.locator("body").inner_text()


def test_a_key_moves_to_the_next_recorded_step(visit, tmp_path):
    run = history({"train/loss": [3.0, 2.5, 2.0, 1.5]}, steps=[0, 100, 200, 300])
    path = tmp_path / "apart.html"
    path.write_text(draw_dashboard(run), "utf-8")
    page = visit(path, "#step=0")
    page.keyboard.press("ArrowRight")
    assert page.locator("#step").input_value() == "100"
    assert "2.5" in legend(page, "loss").values()
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator("#step").input_value() == "300"
    page.keyboard.press("ArrowLeft")
    assert page.locator("#step").input_value() == "200"
