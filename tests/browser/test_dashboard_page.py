"""The dashboard as a person meets it, in Chromium."""

from __future__ import annotations

import pytest

from analysis.dashboard.catalogue import PANELS
from analysis.dashboard.pages import draw_dashboard
from analysis.ema import ema
from tests.browser.conftest import PHONE, WIDE, K
from tests.runners.commands import wait_for

pytestmark = pytest.mark.slow

CHARTS = [chart.key for panel in PANELS for chart in panel.charts]
# Coloured pixels of a canvas: greys are axes, grid and the baseline.
COLOURED = """figure => {
  const canvas = figure.querySelector("canvas");
  if (!canvas) return -1;
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) {
    const rgb = [data[i], data[i + 1], data[i + 2]];
    if (data[i + 3] > 128 && Math.max(...rgb) - Math.min(...rgb) > 60) found++;
  }
  return found;
}"""


def chart(page, key):
    return page.locator(f'[data-chart="{key}"]')


def legend(page, key) -> dict[str, str]:
    """Label -> value, as the legend of a chart with few lines says them."""
    buttons = chart(page, key).locator(".legend button")
    entries = {}
    for index in range(buttons.count()):
        value = buttons.nth(index).locator(".read").inner_text()
        label = buttons.nth(index).inner_text().removesuffix(value).strip()
        entries[label] = value
    return entries


def until(page, expression):
    """Waits; Playwright's own way needs the eval that the page's policy forbids."""
    wait_for(lambda: page.evaluate(expression), seconds=10)


def hide_marks(page):
    page.locator("#marks").uncheck()


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["A", "B", "C", "nan", "three"])
def test_every_panel_is_drawn_or_explained(visit, pages, name, theme, size):
    page = visit(pages.paths[name], size=size, theme=theme)
    assert page.locator("h1").inner_text() == name
    hide_marks(page)  # their colour is not the data's
    numbers = page.locator(".panel .number").all_inner_texts()
    assert numbers == ["1", "2", "3", "4", "5", "6", "7", "M", "B"]
    for key in CHARTS:
        figure = chart(page, key)
        coloured = figure.evaluate(COLOURED)
        absent = figure.locator(".absent")
        if coloured < 0:
            assert absent.inner_text().startswith("Nothing to draw: the record has no")
        else:
            assert coloured > 5, key
    overflow = "document.documentElement.scrollWidth - innerWidth"
    assert page.evaluate(overflow) <= 0


def test_a_million_steps_are_drawn_and_no_extreme_is_lost(visit, million):
    assert million.path.stat().st_size < 6_000_000
    page = visit(million.path)
    for key in CHARTS:
        assert chart(page, key).evaluate(COLOURED) > 5, key
    flagged = page.locator("#flags button").all_inner_texts()
    assert flagged == ["step 123,456", "step 600,000", "step 800,000"]
    page.locator("#step").fill("600000")
    page.keyboard.press("Enter")
    assert legend(page, "loss")["train"] == "9"
    page.locator("#step").fill("800000")
    page.keyboard.press("Enter")
    assert legend(page, "norm")["pre-clip"] == "NaN"
    largest = """key => Math.max(...autopsy.charts.find(c => c.spec.key === key)
        .chart.data.slice(1).flat().filter(Number.isFinite))"""
    assert page.evaluate(largest, "ratio") == pytest.approx(7.7)
    assert page.evaluate(largest, "norm") == 500


def test_counts_are_not_rounded(visit, million):
    page = visit(million.path, "#step=123456")
    assert "123,456" in page.locator("#batch table").inner_text()  # the batch index


def test_ticks_of_steps_are_whole_numbers(visit, pages):
    page = visit(pages.paths["three"])
    ticks = page.evaluate(
        "autopsy.charts.map(({chart}) => chart.axes[0]._splits.map(Number)).flat()"
    )
    assert ticks
    assert all(float(tick).is_integer() for tick in ticks)


def test_a_typed_step_is_found_everywhere(visit, pages):
    page, run = visit(pages.paths["A"]), pages.runs["A"]
    page.locator("#step").fill("57")
    page.keyboard.press("Enter")
    loss = run.scalar("train/loss")
    shown = legend(page, "loss")
    assert float(shown["train"]) == pytest.approx(loss[57], rel=1e-3)
    assert float(shown["EMA-50"]) == pytest.approx(ema(loss)[57], rel=1e-3)
    assert shown["val"].endswith("(step 0)")  # measured every 100 steps
    norm = legend(page, "norm")["pre-clip"]
    preclip = run.scalar("optim/grad_norm_preclip")[57]
    assert float(norm) == pytest.approx(preclip, rel=1e-3)
    assert page.locator("#batch h3").inner_text() == "Batch of step 57"
    assert "step=57" in page.evaluate("location.hash")


def test_hover_is_linked_over_all_panels(visit, pages):
    page = visit(pages.paths["A"], f"#step=0&from={K - 30}&to={K + 30}")
    before = legend(page, "norm")["pre-clip"]
    loss = chart(page, "loss").locator(".u-over")
    width = loss.bounding_box()["width"]
    loss.scroll_into_view_if_needed()
    loss.hover(position={"x": width / 2, "y": 60})
    until(page, f"autopsy.pointed === {K}")
    page.wait_for_timeout(50)
    preclip = pages.runs["A"].scalar("optim/grad_norm_preclip")[K]
    assert float(legend(page, "norm")["pre-clip"]) == pytest.approx(preclip, rel=1e-3)
    cursor = chart(page, "residual").locator(".u-cursor-x")
    assert "u-off" not in cursor.get_attribute("class")
    page.mouse.move(2, 2)
    until(page, "autopsy.pointed === null")
    page.wait_for_timeout(50)
    assert legend(page, "norm")["pre-clip"] == before


def test_zoom_is_linked_over_all_panels(visit, pages):
    page = visit(pages.paths["B"])
    over = chart(page, "lr").locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=4)
    page.mouse.up()
    scales = "autopsy.charts.map(({chart}) => [chart.scales.x.min, chart.scales.x.max])"
    ranges = {tuple(one) for one in page.evaluate(scales)}
    ((low, high),) = ranges
    assert low == pytest.approx(100, abs=3)
    assert high == pytest.approx(150, abs=3)
    over.dblclick()
    assert {tuple(one) for one in page.evaluate(scales)} == {(0, 199)}


def test_a_flagged_step_is_marked_until_the_marks_are_hidden(visit, pages):
    page = visit(pages.paths["C"])
    flags = page.locator("#flags")
    assert flags.locator("li").count() == 1
    text = flags.locator("li").inner_text()
    assert text.startswith(f"step {K}")
    assert "lm_head.bias" in text
    norm = chart(page, "norm")
    marked = norm.evaluate(COLOURED)
    hide_marks(page)
    assert not flags.is_visible()
    assert norm.evaluate(COLOURED) < marked
    assert "marks=off" in page.evaluate("location.hash")


def test_with_the_marks_off_from_the_start_nothing_points_at_the_fault(visit, pages):
    page = visit(pages.paths["C"], "#marks=off")
    assert page.evaluate("autopsy.step") == 0
    assert not page.locator("#flags").is_visible()
    assert f"step {K}" not in page.locator("body").inner_text()


def test_everything_can_be_reached_with_the_keyboard(visit, pages):
    page = visit(pages.paths["A"])
    plot = chart(page, "loss").locator(".plot")
    plot.focus()
    for key, step in (("ArrowRight", 131), ("Shift+ArrowLeft", 121), ("Home", 0)):
        page.keyboard.press(key)
        assert page.evaluate("autopsy.step") == step
    page.keyboard.press("+")
    low, high = page.evaluate("autopsy.zoom")
    assert high - low == 100
    page.keyboard.press("0")
    assert page.evaluate("autopsy.zoom") == [0, 199]
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className "
                "|| document.activeElement.tagName"
            )
        )
    assert {"step", "marks", "theme", "closer", "plot", "SELECT"} <= reached


def test_a_tensor_can_be_brought_forward(visit, pages):
    page, run = visit(pages.paths["C"], f"#step={K}"), pages.runs["C"]
    figure = chart(page, "residual")
    figure.locator("select").select_option(label="embed.weight")
    text = figure.locator(".read").inner_text()
    assert "largest lm_head.bias 0.99" in text
    assert "chosen embed.weight" in text
    figure = chart(page, "second")
    figure.locator("select").select_option(label="lm_head.bias")
    shown = figure.locator(".read").inner_text().rpartition(" ")[2]
    recorded = run.scalar("exp_avg_sq_sum/lm_head.bias")[K]
    assert float(shown) == pytest.approx(recorded, rel=1e-3)


def test_a_line_can_be_hidden(visit, pages):
    page = visit(pages.paths["A"])
    figure = chart(page, "lr")
    before = figure.evaluate(COLOURED)
    for index in range(2):
        figure.locator(".legend button").nth(index).click()
    assert figure.evaluate(COLOURED) < before / 4


def test_the_theme_can_be_chosen(visit, pages):
    page = visit(pages.paths["A"], theme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.locator("#theme").select_option("dark")
    dark = page.evaluate(colour)
    assert light != dark
    page.locator("#theme").select_option("")
    assert page.evaluate(colour) == light
    page.emulate_media(color_scheme="dark")
    until(page, f"{colour} === '{dark}'")


def test_the_batch_is_shown_with_its_texts_and_losses(visit, pages):
    page, run = visit(pages.paths["B"], f"#step={K}"), pages.runs["B"]
    rows = page.locator("#batch .tokens")
    assert rows.count() == 8
    chips = rows.first.locator(".token")
    tokens = [text.split("\n")[0] for text in chips.all_inner_texts()]
    assert tokens[1:6] == ["She", "·has", "·written", "·the", "·letter"]
    losses, offsets = run.array("token/loss")
    first = losses[offsets[K] : offsets[K] + 7]
    shown = [float(one) for one in chips.locator("small").all_inner_texts()[1:]]
    assert shown == pytest.approx(first.tolist(), abs=0.006)
    table = page.locator("#batch table").inner_text()
    print_of_batch = int(run.integer("data/batch_fingerprint")[K])
    assert f"{print_of_batch:016x}" in table


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def test_what_came_from_a_run_is_shown_and_not_executed(visit, pages, tmp_path):
    from dataclasses import replace

    from tests.analysis.dashboard.runs import history

    columns = {
        "train/loss": [2.0, 1.9, 1.8],
        f"grad_norm/{HOSTILE}": [1.0, 1.0, 1.0],
        f"act_mean_abs/{HOSTILE}": [1.0, 2.0, 3.0],
    }
    run = replace(history(columns, name=HOSTILE), notes=[HOSTILE])
    path = tmp_path / "hostile.html"
    path.write_text(draw_dashboard(run, run), "utf-8")
    page = visit(path)
    page.wait_for_timeout(200)
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator(".note").first.inner_text() == HOSTILE
    assert HOSTILE in page.locator('[data-chart="act_mean"] .legend').inner_text()
    assert page.locator("img").count() == 0


def test_injected_markup_could_not_run_either(browser, pages, tmp_path):
    """Should escaping ever fail: the policy lets no other script run, nor fetch."""
    text = pages.paths["three"].read_text("utf-8")
    bad = "<script>document.title = 'run'</script><img src='https://example.com/x'>"
    path = tmp_path / "bad.html"
    path.write_text(text.replace("<h1>", f"{bad}<h1>"), "utf-8")
    page, asked = browser.new_page(), []
    page.on("requestfinished", lambda request: asked.append(request.url))
    page.goto(f"file://{path}")
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.title() == "three · loss-autopsy"
    assert [url for url in asked if not url.startswith("file:")] == []


def test_a_browser_that_is_too_old_is_told(browser, pages):
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(f"file://{pages.paths['three']}")
    page.wait_for_selector("#failure:not([hidden])")
    assert "could not be drawn" in page.locator("#failure").inner_text()


def test_it_opens_inside_a_frame_without_an_origin(browser, pages, tmp_path):
    """As in the artifact viewer of MLflow, whose frame is sandboxed."""
    frame = tmp_path / "frame.html"
    frame.write_text(
        '<iframe sandbox="allow-scripts" style="width:1200px;height:800px" '
        f'src="{pages.paths["A"].name}"></iframe>'
    )
    (tmp_path / pages.paths["A"].name).write_bytes(pages.paths["A"].read_bytes())
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"file://{frame}")
    inside = page.frames[1]
    inside.wait_for_selector("html[data-ready]", state="attached")
    inside.locator("#step").fill("12")
    inside.locator("#step").press("Enter")
    assert inside.evaluate("autopsy.step") == 12
    assert errors == []
