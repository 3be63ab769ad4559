"""What a reader does with a page: buttons, keys, the pointer, the address."""

from __future__ import annotations

import pytest

from analysis.dashboard.pages import draw_comparison, draw_dashboard
from tests.analysis.dashboard.long_run import long_run
from tests.analysis.dashboard.runs import history
from tests.browser.conftest import PHONE, K
from tests.browser.test_dashboard_page import chart, legend

pytestmark = pytest.mark.slow


def test_buttons_lead_to_their_steps(visit, pages, tmp_path):
    page = visit(pages.paths["B"], "#step=0")
    page.locator("#flags button").click()
    assert page.evaluate("autopsy.step") == K
    path = tmp_path / "compare.html"
    path.write_text(draw_comparison([pages.runs["twin"], pages.runs["B"]]), "utf-8")
    page = visit(path, "#step=0")
    page.locator(".divergences button").click()
    assert page.evaluate("autopsy.step") == K


def test_closer_and_wider_are_what_they_say(visit, pages):
    page = visit(pages.paths["A"], "#step=100")

    def width():
        low, high = page.evaluate("autopsy.zoom")
        return high - low

    page.locator("#closer").click()
    assert width() < 60
    assert "from=" in page.evaluate("location.hash")
    page.locator("#wider").click()
    assert width() == pytest.approx(199, abs=4)
    page.keyboard.press("+")
    assert width() == pytest.approx(100, abs=3)
    page.keyboard.press("-")
    assert width() == pytest.approx(199, abs=4)


def test_a_click_chooses_the_step(visit, pages):
    page = visit(pages.paths["A"], "#step=0&from=100&to=140")
    over = chart(page, "lr").locator(".u-over")
    over.scroll_into_view_if_needed()
    over.click(position={"x": over.bounding_box()["width"] * 0.5, "y": 40})
    assert page.evaluate("autopsy.step") == pytest.approx(120, abs=1)


def test_keys_work_wherever_the_pointer_rests(visit, pages):
    page = visit(pages.paths["A"], "#step=50")
    over = chart(page, "norm").locator(".u-over")
    over.scroll_into_view_if_needed()
    over.hover(position={"x": 30, "y": 40})
    page.wait_for_timeout(100)
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(100)
    preclip = pages.runs["A"].scalar("optim/grad_norm_preclip")[51]
    assert float(legend(page, "norm")["pre-clip"]) == pytest.approx(preclip, rel=1e-3)
    assert page.locator("#view").inner_text().startswith("at 51,")


@pytest.mark.parametrize(
    ("typed", "step"),
    [("9999", 199), ("-5", 0), ("1e2", 100), ("1e9", 199), ("12.7", 12), ("", 130)],
)
def test_numbers_are_read_as_numbers(visit, pages, typed, step):
    page = visit(pages.paths["A"])
    page.locator("#step").fill(typed)
    page.locator("#step").press("Enter")
    page.locator("#step").blur()
    assert page.evaluate("autopsy.step") == step


def test_an_address_that_is_edited_is_followed(visit, pages):
    page = visit(pages.paths["A"])
    page.evaluate("location.hash = '#step=77&from=60&to=90'")
    page.wait_for_timeout(100)
    assert page.evaluate("[autopsy.step, ...autopsy.zoom]") == [77, 60, 90]
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert "step=77" in page.evaluate("location.hash")


def test_a_zoom_into_less_than_a_step_shows_that_step(visit, pages):
    page = visit(pages.paths["A"], "#from=98&to=102")
    page.evaluate("autopsy.setZoom(100.1, 100.2)")
    page.evaluate("autopsy.setZoom(100, 100)")
    assert page.evaluate("autopsy.zoom") == [99, 101]


def test_a_chosen_tensor_stays_in_front_under_the_pointer(visit, pages):
    page = visit(pages.paths["C"])
    figure = chart(page, "ratio")
    figure.locator("select").select_option(label="lm_head.bias")
    over = figure.locator(".u-over")
    alphas = """() => {
      const {chart, spec} = autopsy.charts.find((one) => one.spec.key === "ratio");
      return spec.lines.map((line, i) => [line.label, chart.series[i + 1].alpha]);
    }"""
    front = [["lm_head.bias", 1]]
    assert [one for one in page.evaluate(alphas) if one[1] == 1][-1:] == front
    over.scroll_into_view_if_needed()
    for y in (20, 60, 120):
        over.hover(position={"x": 200, "y": y})
        page.wait_for_timeout(60)
        own = [o for o in page.evaluate(alphas) if not o[0].startswith("baseline")]
        assert [one for one in own if one[1] == 1] == front


def test_the_largest_tensor_of_a_thinned_run_is_named(visit, tmp_path):
    run = long_run(100_000, tensors=20)
    run.data.flat["update_norm/blocks.7.weight"][54_321] = 50.0
    path = tmp_path / "thin.html"
    path.write_text(draw_dashboard(run), "utf-8")
    page = visit(path, "#step=54321")
    text = chart(page, "ratio").locator(".read").inner_text()
    assert text.startswith("largest blocks.7.weight")
    assert "furthest from its level blocks.7.weight" in text
    assert "in the cell 54,2" in page.locator("#view").inner_text()


def test_the_tensor_that_left_its_level_is_named(visit, pages):
    page = visit(pages.paths["C"], f"#step={K + 1}")
    text = chart(page, "ratio").locator(".read").inner_text()
    assert "furthest from its level lm_head.bias ×0.0" in text


def test_thirty_two_runs_have_thirty_two_legends(visit, tmp_path):
    runs = [history({"train/loss": [2.0, 1.0 + i]}, name=f"r{i}") for i in range(32)]
    path = tmp_path / "many.html"
    path.write_text(draw_comparison(runs), "utf-8")
    page = visit(path)
    look = "all => all.map((one) => one.style.background)"
    for place in ("header .swatch", '[data-chart="loss-0"] .legend .swatch'):
        assert len(set(page.locator(place).evaluate_all(look))) == 32
    dashes = "autopsy.charts[0].chart.series.slice(1).map((s) => String(s.dash))"
    assert len(set(page.evaluate(dashes))) == 4


def test_long_names_and_large_numbers_have_room(visit, tmp_path):
    name = "model.layers.10.self_attn.q_proj.lora_A.default.weight" * 3
    columns = {"train/loss": [1.0, 1e100], f"act_mean_abs/{name}": [1.0, 1e280]}
    run = history(columns, name="wide")
    path = tmp_path / "wide.html"
    path.write_text(draw_dashboard(run, run), "utf-8")
    page = visit(path, size=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    ticks = "autopsy.charts.map(({chart}) => (chart.axes[1]._splits || []).length)"
    assert min(page.evaluate(ticks)) > 1


def test_charts_follow_the_width_of_the_window(visit, pages):
    page = visit(pages.paths["A"])
    before = chart(page, "norm").locator("canvas").bounding_box()["width"]
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(200)
    after = chart(page, "norm").locator("canvas").bounding_box()["width"]
    assert after < 380 < before
