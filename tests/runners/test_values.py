"""What a script may log, and how what it may not is answered."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from minigpt.records import InputError
from runners.script.values import (
    check_config,
    check_key,
    check_step,
    check_value,
    flattened,
)


@pytest.mark.parametrize("step", [0, 1, 2**53 - 1, np.int64(7), np.uint8(3)])
def test_a_step_is_a_whole_number(step):
    found = check_step(step)
    assert (type(found), found) == (int, int(step))


@pytest.mark.parametrize(
    "step", [True, np.True_, 1.0, "1", -1, 2**53, 10**30, math.nan, np.array([1])]
)
def test_anything_else_is_no_step(step):
    with pytest.raises(InputError, match=r"^step: expected "):
        check_step(step)


@pytest.mark.parametrize(
    "key",
    ["loss", "train/loss", "a b", "a.b-c:d_e", "Größe", "x" * 250, "a/b/c", "a.."],
)
def test_keys_that_mlflow_takes(key):
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key",
    [
        *(
            "",
            "x" * 251,
            "a\n",
            "a\tb",
            "a[0]",
            "a(b)",
            "a=b",
            "a,b",
            "ü\u202e",
            "a\\b",
        ),
        *("/a", "a/", "a//b", "./a", "a/./b", "../a", "a/../b", "..", ".", "a/.."),
        *("step", "time/wall", "summary/a", "histogram/a", "data/batch_tokens"),
        *(None, 1, b"loss", ("a",)),
    ],
)
def test_keys_that_are_refused_are_named(key):
    with pytest.raises(InputError, match=r"^key") as caught:
        check_key(key)
    assert "\n" not in str(caught.value)


def test_mlflow_itself_takes_and_refuses_the_same_keys():
    from mlflow.exceptions import MlflowException
    from mlflow.utils.validation import _validate_metric_name

    for key in ("train/loss", "a b", "a.b-c:d_e", "Größe", "x" * 250, "a.."):
        _validate_metric_name(key)
    for key in ("", "a[0]", "/a", "a/", "a//b", "./a", "a/../b", "..", "a\\b"):
        with pytest.raises(MlflowException):
            _validate_metric_name(key)


def test_a_column_of_the_run_is_no_key():
    with pytest.raises(InputError, match=r"'optim/lr'.*watch\(\)"):
        check_key("optim/lr", {"optim/lr"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (-0.0, -0.0),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float16(65504), 65504.0),
        (np.int64(-3), -3.0),
        (np.array(2.5), 2.5),
        (np.array([[4]]), 4.0),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([1.5], requires_grad=True), 1.5),
        (torch.tensor(3, dtype=torch.int64), 3.0),
        (torch.tensor(0.1, dtype=torch.bfloat16), 0.10009765625),
        (Fraction(1, 4), 0.25),
        (5e-324, 5e-324),
    ],
)
def test_real_numbers_are_taken_exactly(value, expected):
    found = check_value("k", value)
    assert type(found) is float
    assert math.copysign(1, found) == math.copysign(1, expected)
    assert found == expected


@pytest.mark.parametrize("value", [math.nan, np.float32("nan"), torch.tensor(math.nan)])
def test_nan_is_a_number(value):
    assert math.isnan(check_value("k", value))


@pytest.mark.parametrize(
    "value",
    [
        *(True, False, np.True_, torch.tensor(True), None, "1.0", b"1", 1j),
        *(np.complex64(1), torch.tensor(1j), [1.0], (1.0,), {"a": 1}, object()),
        *(np.array([1, 2]), np.array([]), torch.ones(2, 3), Decimal("1.5")),
        *(np.array("x"), np.datetime64("2026-01-01"), 10**400),
    ],
)
def test_what_is_no_real_number_is_refused_with_its_key(value):
    with pytest.raises(InputError, match=r"^train/x: expected ") as caught:
        check_value("train/x", value)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_a_config_becomes_plain_json():
    given = {
        "lr": np.float32(0.5),
        "n": {"layers": np.int64(2), "on": np.True_, "none": None},
        "betas": (0.9, 0.95),
        "name": "é",
    }
    found = check_config(given)
    assert found == {
        "lr": 0.5,
        "n": {"layers": 2, "on": True, "none": None},
        "betas": [0.9, 0.95],
        "name": "é",
    }
    types = [type(v) for _, v in flattened(found)]
    assert types == [float, int, bool, type(None), list, str]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"a": {"b": math.nan}}, "config.a.b: "),
        ({"a": math.inf}, "config.a: "),
        ({"a": [1, {"b": 1j}]}, "config.a.1.b: "),
        ({"a": object()}, "config.a: "),
        ({"a": {1: 2}}, "config.a: expected keys of text"),
        ({"a": {"b[0]": 2}}, "config.a: expected keys of letters"),
        ({"": 2}, "config: expected keys of letters"),
        ({"/a": 2}, "config: expected keys of letters"),
        ([1], "config: expected keys and values"),
        ({"a": np.ones(3)}, "config.a: "),
    ],
)
def test_what_a_config_may_not_hold_is_named_by_its_dotted_key(config, named):
    with pytest.raises(InputError, match=f"^{re.escape(named)}"):
        check_config(config)


def test_a_config_that_holds_itself_is_refused():
    config: dict = {}
    config["a"] = config
    with pytest.raises(InputError, match="at most 50 levels"):
        check_config(config)
