"""What holds for every page, whatever it shows."""

from tests.analysis.dashboard.runs import charts_of, page_arrays, page_json, visible

NUMBERS = [*"1234567", "M", "B"]


def check(text, further=()):
    """What holds for every page; its description.

    Args:
        text: the page.
        further: numbers of the panels that it has besides those of every run.
    """
    text.encode()
    page, arrays = page_json(text), page_arrays(text)
    shown = visible(text)
    assert [panel["number"] for panel in page["panels"]] == [*NUMBERS, *further]
    for panel in page["panels"]:
        assert panel["title"] in shown
        assert panel["conclusion"] in shown
    for chart in charts_of(page).values():
        assert bool(chart["lines"]) != bool(chart["absent"])
        if chart["absent"]:
            assert f"Nothing to draw: {chart['absent']}." in shown
        for note in chart["notes"]:
            assert note
            assert note in shown
        for line in chart["lines"]:
            first = arrays[line["grid"]["first"]]
            last = arrays[line["grid"].get("last", line["grid"]["first"])]
            start, end = arrays[line["start"]], arrays[line.get("end", line["start"])]
            assert len(first) == len(last) == len(start) == len(end) > 0
    return page
