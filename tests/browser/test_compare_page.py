"""Several runs on one page, in Chromium."""

from __future__ import annotations

import pytest

from analysis.dashboard.pages import draw_comparison
from tests.browser.conftest import PHONE, WIDE, K
from tests.browser.test_dashboard_page import COLOURED, legend

pytestmark = pytest.mark.slow


@pytest.fixture
def page(visit, pages, tmp_path, request):
    names = ("twin", "A", "B", "C")
    path = tmp_path / "compare.html"
    path.write_text(draw_comparison([pages.runs[name] for name in names]), "utf-8")
    return visit(path, size=getattr(request, "param", WIDE))


@pytest.mark.parametrize("page", [WIDE, PHONE], indirect=True, ids=["wide", "phone"])
def test_every_chart_is_drawn(page):
    page.locator("#marks").uncheck()
    figures = page.locator("figure")
    assert figures.count() >= 15
    for index in range(figures.count()):
        assert figures.nth(index).evaluate(COLOURED) > 5
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_what_differs_comes_first_and_the_first_differing_step_is_named(page):
    text = page.locator("#differences").inner_text()
    assert "injection.kind" in text
    assert "v_corrupt" in text
    assert "clip" not in text.partition("Against")[0]  # all have the same
    lines = page.locator(".divergences li").all_inner_texts()
    assert [line.split()[0] for line in lines] == ["A", "B", "C"]
    assert all(f"first differs at step {K}:" in line for line in lines)
    assert lines[2].endswith("exp_avg_sq_sum/lm_head.bias")
    page.locator(".divergences button").first.click()
    assert page.evaluate("autopsy.step") == K


def test_runs_can_be_told_apart_in_the_legends(page, pages):
    page.locator("#step").fill(str(K))
    page.keyboard.press("Enter")
    shown = legend(page, "norm-0")
    column = "optim/grad_norm_preclip"
    for name in ("twin", "A", "B", "C"):
        recorded = pages.runs[name].scalar(column)[K]
        assert float(shown[name]) == pytest.approx(recorded, rel=1e-3)
    assert float(legend(page, "residual-0")["C"]) == pytest.approx(0.99, rel=1e-2)


def test_sixteen_runs_have_sixteen_looks(visit, pages, tmp_path):
    from dataclasses import replace

    runs = [replace(pages.runs["A"], name=f"run-{index}") for index in range(16)]
    path = tmp_path / "sixteen.html"
    path.write_text(draw_comparison(runs), "utf-8")
    page = visit(path)
    looks = page.evaluate(
        "[...Array(16).keys()].map(run => runColour(run) + runDash(run))"
    )
    assert len(set(looks)) == 16
