"""What a page draws and says, against the record; each figure by another way."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.dashboard.catalogue import PANELS
from analysis.dashboard.pages import draw_comparison, draw_dashboard
from tests.analysis.dashboard.long_run import long_run
from tests.analysis.dashboard.runs import history
from tests.browser.conftest import STEPS, K
from tests.browser.test_dashboard_page import chart, hide_marks, legend

pytestmark = pytest.mark.slow

CHARTS = [one for panel in PANELS for one in panel.charts]
# The colour of the canvas at a step and a height of a chart, as numbers 0 to 255.
PIXEL = """([key, step, y, dx]) => {
  const {chart} = autopsy.charts.find((one) => one.spec.key === key);
  const x = Math.round(chart.valToPos(step, "x", true)) + (dx || 0);
  const at = y === "top" ? chart.bbox.top + 2 : y === "bottom"
    ? chart.bbox.top + chart.bbox.height - 3 : Math.round(chart.valToPos(y, "y", true));
  const copy = new OffscreenCanvas(1, 1).getContext("2d");
  copy.drawImage(chart.ctx.canvas, x, at, 1, 1, 0, 0, 1, 1);
  return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
}"""
DATA = """key => {
  const {chart, spec} = autopsy.charts.find((one) => one.spec.key === key);
  return {x: chart.data[0], labels: spec.lines.map((line) => line.label),
          ys: chart.data.slice(1).map((column) => column.map((y) => y ?? null))};
}"""


def close(one, other):
    return bool(np.abs(np.subtract(one, other)).max() < 40)


def colour(page, name) -> list[int]:
    text = page.evaluate("name => themed(name)", name).removeprefix("#")
    return [int(text[i : i + 2], 16) for i in (0, 2, 4)]


def drawn(built, floor):
    """The points of a line as the library should get them, said by a plain loop."""
    for row, value in zip(built.rows.tolist(), built.values.tolist(), strict=True):
        if not np.isfinite(value):
            yield row, None
        elif floor == "linear":
            yield row, value
        elif floor is not None:
            yield row, max(value, floor)
        else:
            yield row, value if value > 0 else None


@pytest.mark.parametrize("name", ["C", "nan"])
def test_every_line_of_every_chart_has_the_numbers_of_the_record(visit, pages, name):
    page, run = visit(pages.paths[name]), pages.runs[name]
    for one in CHARTS:
        found = page.evaluate(DATA, one.key)
        place = {step: index for index, step in enumerate(found["x"])}
        for built in one.build(run):
            ys = found["ys"][found["labels"].index(built.label)]
            floor = one.floor if one.scale == "log" else "linear"
            expected = [None] * len(ys)
            for row, value in drawn(built, floor):
                expected[place[row]] = value
            got = np.array(ys, float)
            want = np.array(expected, float)
            np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=built.label)


def test_legends_say_what_the_record_says_at_any_step(visit, pages):
    page, run = visit(pages.paths["A"]), pages.runs["A"]
    columns = {
        ("loss", "train"): "train/loss",
        ("norm", "pre-clip"): "optim/grad_norm_preclip",
        ("norm", "post-clip"): "optim/grad_norm_postclip",
        ("lr", "used"): "optim/lr",
        ("act_max", "blocks.1"): "act_max_abs/blocks.1",
        ("rare", "times"): "data/rare_token_max_count",
    }
    for step in np.random.default_rng(0).integers(0, STEPS, 12).tolist():
        page.locator("#step").fill(str(step))
        page.keyboard.press("Enter")
        for (key, label), column in columns.items():
            shown = float(legend(page, key)[label])
            assert shown == pytest.approx(run.scalar(column)[step], rel=1e-3)


def test_a_sparse_line_ends_with_the_record_and_a_dense_one_where_it_ends(
    visit, tmp_path
):
    first = history({"train/loss": [3.0, 2.0, 1.0]}, name="short")
    other = history({"train/loss": [3.0, 2.5, 2.0, 1.5, 1.0]}, name="long")
    path = tmp_path / "two.html"
    path.write_text(draw_comparison([first, other]), "utf-8")
    shown = legend(visit(path, "#step=4"), "loss-0")
    assert shown == {"short": "–", "long": "1"}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_have_the_colours_of_their_legend_in_both_themes(visit, pages, theme):
    page = visit(pages.paths["twin"], theme="dark" if theme == "light" else "light")
    page.locator("#theme").select_option(theme)  # drawn in the other one before
    norm = pages.runs["twin"].scalar("optim/grad_norm_preclip")
    page.evaluate("autopsy.setZoom(50, 60)")
    assert close(page.evaluate(PIXEL, ["norm", 55, norm[55], 0]), colour(page, "--c0"))
    assert close(page.evaluate(PIXEL, ["lr", 55, 5.6e-05 * 3, 0]), colour(page, "--c0"))
    swatches = chart(page, "norm").locator(".legend .swatch")
    backgrounds = swatches.evaluate_all(
        "all => all.map((one) => getComputedStyle(one).backgroundColor)"
    )
    red, green, blue = colour(page, "--c0")
    assert backgrounds[0] == f"rgb({red}, {green}, {blue})"
    dashed = swatches.nth(1).evaluate("one => getComputedStyle(one).backgroundImage")
    red, green, blue = colour(page, "--c1")
    assert f"rgb({red}, {green}, {blue}) 0px" in dashed


def test_marks_and_the_step_stand_where_they_belong(visit, pages):
    page = visit(pages.paths["C"], f"#step=20&from=0&to={STEPS - 1}")
    mark, ground = colour(page, "--mark"), colour(page, "--card")

    def at(step, dx=0):
        return page.evaluate(PIXEL, ["loss", step, "top", dx])

    assert close(at(K), mark)
    assert close(at(K, 25), ground) or not close(at(K, 25), mark)
    assert not close(at(K - 8), mark)
    faint = (0.6 * np.array(mark) + 0.4 * np.array(ground)).tolist()
    heights = np.linspace(2e-5, 2e-4, 25).tolist()  # below the line, dash and gap
    below = [page.evaluate(PIXEL, ["lr", K, height, 0]) for height in heights]
    assert any(close(pixel, faint) for pixel in below)
    beside = [page.evaluate(PIXEL, ["lr", K + 7, height, 0]) for height in heights]
    assert not any(close(pixel, faint) for pixel in beside)
    dark = [page.evaluate(PIXEL, ["residual", 20, "bottom", dx]) for dx in (-1, 0, 1)]
    assert min(sum(pixel) for pixel in dark) < sum(ground) - 150
    hide_marks(page)
    assert not close(at(K), mark)


def test_the_bar_of_what_is_not_finite_stands_over_its_steps(visit, tmp_path):
    rate = np.full(100, 2.0)
    rate[40:50] = np.nan
    path = tmp_path / "odd.html"
    run = history({"optim/lr": rate})
    path.write_text(draw_dashboard(run), "utf-8")
    page = visit(path, "#marks=off")
    odd = colour(page, "--odd")
    hits = [close(page.evaluate(PIXEL, ["lr", s, "top", 0]), odd) for s in range(100)]
    assert hits == [40 <= step < 50 for step in range(100)]


def test_a_value_between_two_that_are_not_finite_is_a_dot(visit, tmp_path):
    loss = np.full(300, np.nan)
    loss[::10] = 2.0
    path = tmp_path / "lonely.html"
    path.write_text(draw_dashboard(history({"train/loss": loss})), "utf-8")
    page = visit(path, "#marks=off&step=299")
    train = colour(page, "--c0")
    assert close(page.evaluate(PIXEL, ["loss", 100, 2.0, 0]), train)
    assert not close(page.evaluate(PIXEL, ["loss", 105, 2.0, 0]), train)


def test_rulers_stand_at_their_heights(visit, tmp_path):
    run = history({"optim/grad_norm_preclip": np.r_[0.5, np.full(198, 3.0), 0.5]})
    path = tmp_path / "ruler.html"
    path.write_text(draw_dashboard(run), "utf-8")
    page = visit(path, "#step=0&marks=off")
    muted = colour(page, "--muted")

    def row(height):
        pixels = [
            page.evaluate(PIXEL, ["norm", s, height, 0]) for s in range(20, 190, 3)
        ]
        return any(close(pixel, muted) for pixel in pixels)

    assert row(1.0)
    assert not any(row(height) for height in (1.2, 1.3, 1.4, 1.5, 1.6))


def test_the_histogram_stands_on_its_feet(visit, tmp_path):
    run = long_run(60, tensors=1)
    counts, _ = run.data.arrays["token/loss_histogram"]
    counts.reshape(60, -1)[30, 2], counts.reshape(60, -1)[30, 20] = 0, 8
    path = tmp_path / "histogram.html"
    path.write_text(draw_dashboard(run), "utf-8")
    page = visit(path, "#marks=off&step=0")
    heat = [int(one) for one in page.evaluate("themed('--heat')").split(",")]
    for step, low in ((29, 1.25), (30, 10.25), (31, 1.25)):
        assert close(page.evaluate(PIXEL, ["histogram", step, low, 0]), heat), step
    for step, low in ((29, 10.25), (30, 1.25), (31, 10.25), (30, 5.75)):
        assert not close(page.evaluate(PIXEL, ["histogram", step, low, 0]), heat), step


@pytest.mark.parametrize("step", [3, K, STEPS - 1])
def test_every_token_has_its_own_loss(visit, pages, step):
    page, run = visit(pages.paths["A"], f"#step={step}"), pages.runs["A"]
    _, at = run.array("data/batch_tokens")
    lengths, rows = run.array("data/batch_row_lengths")
    losses, starts = run.array("token/loss")
    chips = page.locator("#batch .token small").all_inner_texts()
    assert len(chips) == at[step + 1] - at[step]
    expected = iter(losses[starts[step] : starts[step + 1]].tolist())
    place = 0
    for length in lengths[rows[step] : rows[step + 1]].tolist():
        assert chips[place] == "–"
        for shown in chips[place + 1 : place + length]:
            assert float(shown) == pytest.approx(next(expected), abs=0.006)
        place += length


def test_losses_beyond_the_scale_are_named(visit, tmp_path):
    run = long_run(4, tensors=1)
    losses, _ = run.data.arrays["token/loss"]
    losses[0], losses[1] = np.nan, 99.0
    path = tmp_path / "beyond.html"
    path.write_text(draw_dashboard(run), "utf-8")
    page = visit(path, "#step=0")
    texts = page.locator("#batch .token small").all_inner_texts()
    assert texts[1:3] == ["not finite", "32 or more"]
