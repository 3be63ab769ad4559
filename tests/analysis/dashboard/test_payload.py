"""The payload, decoded by other code than ours."""

import gzip
from base64 import b64decode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.dashboard.payload import MAX_WHOLE, Payload
from tests.analysis.dashboard.runs import decoded


def read(payload):
    return decoded(payload.index, payload.encoded())


def types(payload):
    return [entry["type"] for entry in payload.index]


@given(st.lists(st.lists(st.floats(width=32)), max_size=5))
def test_single_precision_comes_back_bit_for_bit(arrays):
    payload = Payload()
    assert [payload.floats(np.array(one, float)) for one in arrays] == [
        *range(len(arrays))
    ]
    for one, found in zip(arrays, read(payload), strict=True):
        expected, found = np.array(one, float), np.array(found)
        assert np.array_equal(expected, found, equal_nan=True)
        known = ~np.isnan(expected)
        assert np.array_equal(np.signbit(expected[known]), np.signbit(found[known]))


@given(st.lists(st.floats()))
def test_no_number_is_lost_or_becomes_another(values):
    payload = Payload()
    payload.floats(np.array(values, float))
    (found,) = read(payload)
    for value, stored in zip(values, found, strict=True):
        if value != value:
            assert stored != stored
        elif value in (0.0, np.inf, -np.inf):
            assert stored == value
        else:
            assert abs(stored - value) <= 6e-8 * abs(value)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.0, 0.0, -0.0, 3.4e38], "f4"),
        ([np.nan, np.inf, -np.inf], "f4"),
        ([3.5e38], "f8"),
        ([-1e300, np.inf], "f8"),
        ([1e-38], "f8"),  # a subnormal of single precision has fewer digits
        ([5e-324], "f8"),
        ([], "f4"),
    ],
)
def test_double_precision_only_where_it_is_needed(values, kind):
    payload = Payload()
    payload.floats(np.array(values, float))
    assert types(payload) == [kind]
    if kind == "f8":
        assert read(payload) == [values]


@pytest.mark.parametrize(
    ("largest", "kind"),
    [
        (0, "u1"),
        (2**8 - 1, "u1"),
        (2**8, "u2"),
        (2**16 - 1, "u2"),
        (2**16, "u4"),
        (2**32 - 1, "u4"),
        (2**32, "f8"),
        (MAX_WHOLE, "f8"),
        (-1, "f8"),
        (-MAX_WHOLE, "f8"),
    ],
)
def test_integers_take_the_bytes_that_they_need(largest, kind):
    payload = Payload()
    payload.integers(np.array([0, 1, largest]))
    payload.integers(np.array([], int))
    assert types(payload) == [kind, "u1"]
    assert read(payload) == [[0, 1, largest], []]


@pytest.mark.parametrize("value", [MAX_WHOLE + 1, -MAX_WHOLE - 1])
def test_an_integer_that_a_page_cannot_hold_is_refused(value):
    with pytest.raises(ValueError, match=f"found .*{value}"):
        Payload().integers(np.array([0, value]))


@given(st.lists(st.lists(st.integers(0, 2**32 - 1)), max_size=5))
def test_integers_come_back(arrays):
    payload = Payload()
    for one in arrays:
        payload.integers(np.array(one, np.int64))
    assert read(payload) == arrays


def test_the_same_numbers_are_the_same_text():
    texts = set()
    for _ in range(2):
        payload = Payload()
        payload.floats(np.arange(9.0))
        texts.add(payload.encoded())
    assert len(texts) == 1


def test_an_empty_payload_is_one():
    assert gzip.decompress(b64decode(Payload().encoded())) == b""


def test_an_array_with_gaps_between_its_numbers_is_stored_in_order():
    payload = Payload()
    payload.floats(np.arange(10.0)[::3])
    payload.integers(np.arange(12).reshape(3, 4)[:, 1])
    assert read(payload) == [[0.0, 3.0, 6.0, 9.0], [1, 5, 9]]
