"""What the charts draw, or why there is nothing to draw."""

import numpy as np
import pytest

from analysis.dashboard import lines
from analysis.dashboard.lines import MAX_LINES, Absent, Line, liveliest
from analysis.ema import ema
from minigpt import records as col
from tests.analysis.dashboard.runs import changed, full, history


def line_of(values, label="x"):
    return Line(label, np.arange(len(values)), np.asarray(values, float))


def test_a_column_is_drawn_where_it_was_measured():
    run = history({"a": np.arange(30.0)}, None, {"b": {3: 1.0, 9: np.nan}})
    whole, now = lines.column(run, "a", "A"), lines.column(run, "b", "B", dashed=True)
    assert (whole.rows.tolist(), whole.sparse) == (list(range(30)), False)
    assert (now.label, now.rows.tolist(), now.sparse) == ("B", [3, 9], True)
    assert np.array_equal(now.values, [1.0, np.nan], equal_nan=True)
    assert (whole.dashed, now.dashed) == (False, True)


@pytest.mark.parametrize(("measured", "sparse"), [(19, True), (20, False)])
def test_a_column_of_a_fifth_of_the_steps_is_a_line(measured, sparse):
    run = history({}, None, {"b": dict.fromkeys(range(measured), 1.0)}, range(100))
    assert lines.column(run, "b", "B").sparse == sparse


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda run: lines.column(run, "x", "X"), "the record has no column x"),
        (
            lambda run: lines.column(run, "b", "B"),
            "b was not measured in these 3 steps",
        ),
        (
            lambda run: lines.columns(run, [("x", "X"), ("b", "B")]),
            "the record has no column x; b was not measured in these 3 steps",
        ),
        (lambda run: lines.family(run, "x/"), r"the record has no column x/\*"),
        (
            lambda run: lines.family(run, "s/"),
            r"s/\* was not measured in these 3 steps",
        ),
        (
            lambda run: lines.per_tensor(run, ("grad_norm/", "x/"), np.divide),
            r"no tensor has the columns grad_norm/\* and x/\*",
        ),
        (lines.loss_lines, "the record has no column train/loss"),
    ],
)
def test_what_is_absent_is_said(build, reason):
    flat = {"a": np.zeros(3), "grad_norm/w": np.zeros(3)}
    run = history(flat, None, {"b": {}, "s/one": {}, "s/two": {}})
    with pytest.raises(Absent, match=f"^{reason}$"):
        build(run)


@pytest.mark.parametrize(
    "build",
    [
        lambda run: lines.column(run, col.LR, "x"),
        lambda run: lines.columns(run, [(col.LR, "x"), (col.LR_DECLARED, "y")]),
        lambda run: lines.family(run, col.ACT_MAX_ABS),
        lambda run: lines.family(run, col.SPECTRAL_NORM),
        lambda run: lines.per_tensor(run, (col.GRAD_NORM,), np.abs),
        lines.loss_lines,
    ],
)
def test_a_record_without_steps_says_so_once(build):
    with pytest.raises(Absent, match=r"^the record has no steps$"):
        build(full(0, tensors=5))


def test_a_line_a_tensor_from_its_columns():
    run = full(5, tensors=3)
    found = lines.per_tensor(
        run, (col.TENSOR_UPDATE_NORM, col.TENSOR_PARAM_NORM), np.divide
    )
    assert [line.label for line in found] == run.tensors
    for line in found:
        for row in range(5):
            update = float(run.scalar(col.TENSOR_UPDATE_NORM + line.label)[row])
            size = float(run.scalar(col.TENSOR_PARAM_NORM + line.label)[row])
            assert line.values[row] == update / size


def test_a_tensor_without_one_of_the_columns_is_left_out():
    run = changed(full(5, tensors=3), without=(f"{col.GRAD_NORM}layer.1.weight",))
    found = lines.per_tensor(run, (col.GRAD_NORM,), np.abs)
    assert [line.label for line in found] == ["layer.0.weight", "layer.2.weight"]


def test_a_division_by_zero_is_a_value_and_no_warning():
    run = history({"u/w": [0.0, 1.0, 1e300], "grad_norm/w": [0.0, 0.0, 1e-300]})
    (line,) = lines.per_tensor(run, ("u/", "grad_norm/"), np.divide)
    assert np.array_equal(line.values, [np.nan, np.inf, np.inf], equal_nan=True)


def test_the_lines_of_the_loss():
    run = full(20)
    found = {line.label: line for line in lines.loss_lines(run)}
    assert list(found) == ["train", "EMA-50", "val", "val, causal mask"]
    assert np.array_equal(found["EMA-50"].values, ema(run.scalar(col.TRAIN_LOSS)))
    assert found["val"].rows.tolist() == [0, 7, 14]
    run = changed(full(20), without=(col.VAL_LOSS, col.VAL_LOSS_CAUSAL))
    assert [line.label for line in lines.loss_lines(run)] == ["train", "EMA-50"]


# -- too many lines --------------------------------------------------------------------


def test_the_lines_that_stray_furthest_stay_in_their_order():
    rng = np.random.default_rng(0)
    many = [line_of(1 + 0.01 * rng.random(50), str(i)) for i in range(MAX_LINES + 30)]
    lively = [3, 40, 80, 93]
    many[3].values[7] = 100.0
    many[40].values[7] = 1e-9
    many[80].values[7] = np.nan
    many[93].values[7] = -np.inf
    kept = liveliest(many)
    labels = [int(line.label) for line in kept]
    assert len(kept) == MAX_LINES
    assert labels == sorted(labels)
    assert set(lively) <= set(labels)


def test_up_to_the_limit_all_lines_stay():
    few = [line_of([1.0]) for _ in range(MAX_LINES)]
    assert liveliest(few) is few


@pytest.mark.parametrize("value", [0.0, -1.0, 1e300, 5e-324])
def test_odd_values_can_be_ranked(value):
    many = [line_of([value, 1.0, 2.0]) for _ in range(MAX_LINES + 1)]
    assert len(liveliest(many)) == MAX_LINES
