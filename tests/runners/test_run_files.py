"""Tables, figures, files and alerts of a script's run."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from minigpt.records import InputError
from runners.script import files as run_files
from runners.script.alerts import append_alert, make_alert, read_alerts
from runners.script.files import RunFiles, as_table
from tests.runners.scripts import begin


@pytest.fixture
def files(tmp_path):
    return RunFiles(tmp_path)


def inside(path, tmp_path):
    return path.resolve().relative_to((tmp_path / "artifacts").resolve()).as_posix()


@pytest.mark.parametrize(
    ("rows", "columns", "data"),
    [
        ([{"a": 1, "b": "x"}, {"b": "y"}], ["a", "b"], [[1, "x"], [None, "y"]]),
        ({"a": [1, 2], "b": [0.5, math.nan]}, ["a", "b"], [[1, 0.5], [2, "nan"]]),
        (pd.DataFrame({"a": [1], "b": [math.inf]}), ["a", "b"], [[1, "inf"]]),
        ({"a": np.array([1.5, 2])}, ["a"], [[1.5], [2.0]]),
        ([], [], []),
        ([{1: np.float32(0.5), "t": (1,)}], ["1", "t"], [[0.5, "(1,)"]]),
    ],
)
def test_a_table_is_the_json_that_mlflow_shows(files, rows, columns, data):
    path = files.table("my/table", rows)
    assert path.name == "my_table.json"
    assert json.loads(path.read_text()) == {"columns": columns, "data": data}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (3, "t: expected rows as dicts"),
        ("abc", "t: expected rows as dicts"),
        ([1], "t: expected rows as dicts"),
        ({"a": [1], "b": [1, 2]}, "t: expected columns of one length, got 1 to 2"),
        ({"a": 1}, "t.a: expected a column"),
        ({"a": "text"}, "t.a: expected a column"),
    ],
)
def test_what_is_no_table_is_refused(rows, said):
    with pytest.raises(InputError, match=f"^{said}"):
        as_table("t", rows)


def test_a_table_is_bounded(monkeypatch):
    monkeypatch.setattr(run_files, "MAX_CELLS", 5)
    with pytest.raises(InputError, match="at most 5 cells, got 6"):
        as_table("t", {"a": [1, 2, 3], "b": [1, 2, 3]})


class Plotly:
    def write_html(self, path):
        path.write_text("<html>")


def matplotlib_figure():
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([1, 2])
    return figure


@pytest.mark.parametrize(
    ("make", "suffix", "begins"),
    [
        (matplotlib_figure, ".png", b"\x89PNG"),
        (lambda: Image.new("RGB", (2, 2)), ".png", b"\x89PNG"),
        (Plotly, ".html", b"<html>"),
    ],
)
def test_figures(files, tmp_path, make, suffix, begins):
    path = files.figure("a", make())
    assert inside(path, tmp_path) == f"figures/a{suffix}"
    assert path.read_bytes().startswith(begins)
    with pytest.raises(InputError, match="a: expected a figure"):
        files.figure("a", 3)


@pytest.mark.parametrize(
    ("key", "name"),
    [("a", "a"), ("a/b c", "a_b_c"), ("..", "unnamed"), ("ü", "unnamed")],
)
def test_no_key_becomes_a_path_or_hides_another(files, tmp_path, key, name):
    paths = [files.table(key, [{"n": n}]) for n in range(3)]
    names = [f"tables/{name}{more}.json" for more in ("", "-2", "-3")]
    assert [inside(path, tmp_path) for path in paths] == names
    assert [json.loads(p.read_text())["data"] for p in paths] == [[[0]], [[1]], [[2]]]


def test_files_and_folders_are_copied(files, tmp_path):
    source = tmp_path / "in"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a.txt").write_text("x")
    assert inside(files.file(source), tmp_path) == "files/in"
    copy = files.file(source / "deep" / "a.txt")
    assert (inside(copy, tmp_path), copy.read_text()) == ("files/a.txt", "x")
    other = files.file(str(source / "deep" / "a.txt"))
    assert inside(other, tmp_path) == "files/a-2.txt"
    for wrong in (tmp_path / "none", 3):
        with pytest.raises(InputError, match="artifact"):
            files.file(wrong)


def test_a_figure_that_cannot_be_drawn_leaves_nothing(files, tmp_path):
    class Broken:
        def savefig(self, path, format):
            path.write_bytes(b"half")
            raise RuntimeError("no font")

    with pytest.raises(RuntimeError, match="no font"):
        files.figure("a", Broken())
    assert list((tmp_path / "artifacts" / "figures").iterdir()) == []


def test_an_alert_is_on_the_disk_and_on_stderr_at_once(tmp_path, capsys):
    run = begin(tmp_path)
    run.log({"a": 1}, step=4)
    run.alert("Loss is\nNaN", "look", level="error")
    (alert,) = read_alerts(run.folder)
    assert (alert["title"], alert["text"], alert["level"], alert["step"]) == (
        *("Loss is\nNaN", "look", "error"),
        4,
    )
    assert capsys.readouterr().err == "loss-autopsy: error: Loss is NaN: look\n"
    for arguments in ({"title": ""}, {"title": 3}, {"text": 3}, {"level": "loud"}):
        with pytest.raises(InputError, match=r"^alert"):
            run.alert(**{"title": "t"} | arguments)
    run.finish()


def test_damaged_lines_of_alerts_are_passed_over(tmp_path):
    for title in ("one", "two"):
        append_alert(tmp_path, make_alert(title, "", "info", None))
    path = tmp_path / "alerts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b'[1]\n{"title": 3}\n\xff\n' + whole[:-4])
    assert [alert["title"] for alert in read_alerts(tmp_path)] == ["one"]
    os.truncate(path, 0)
    assert read_alerts(tmp_path) == []
