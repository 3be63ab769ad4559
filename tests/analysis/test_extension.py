"""Columns that a journal gains on the way: live, closed, cut and damaged."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest

from analysis import extension, journal
from analysis.blocks import columns_of_block, concatenate
from analysis.extension import EXTENSION_MAGIC, extended
from analysis.journal import (
    JournalReader,
    encode_block,
    encode_extension,
    encode_header,
)
from analysis.parquet import read_parquet, write_parquet
from minigpt.records import InputError, RecordLayout, StepRecord

BASE = RecordLayout(("time/wall",), arrays={"old": "uint16"})
SECOND = extended(BASE, ["loss", "acc"], {"hist/counts": "uint32"})
THIRD = extended(SECOND, ["late"], {})


def record(step, values=(), arrays=()):
    empty = np.empty(0, np.float32), np.empty(0, np.uint64)
    return StepRecord(step, np.array([step + 0.5]), *empty, dict(arrays), dict(values))


def counts(*numbers):
    return np.array(numbers, np.uint32)


FIRST_ROWS = [record(0, arrays={"old": np.array([1, 2], np.uint16)}), record(1)]
SECOND_ROWS = [
    record(5, {"loss": np.nan, "acc": -0.0}),
    record(6, {"loss": np.inf}, {"hist/counts": counts(7, 8, 9)}),
]
THIRD_ROWS = [record(9, {"late": 5e-324, "acc": 0.1}, {"hist/counts": counts(1)})]
PARTS = [
    encode_header(BASE),
    encode_block(BASE, FIRST_ROWS),
    encode_extension(BASE, ["loss", "acc"], {"hist/counts": "uint32"}),
    encode_block(SECOND, SECOND_ROWS),
    encode_extension(SECOND, ["late"], {}),
    encode_block(THIRD, THIRD_ROWS),
]
ENDS = np.cumsum([len(part) for part in PARTS]).tolist()
WHOLE = b"".join(PARTS)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "journal.bin"
    found.write_bytes(WHOLE)
    return found


def read(path):
    reader = JournalReader(path)
    blocks = reader.read_new()
    return columns_of_block(reader.layout, concatenate(reader.layout, blocks)), reader


def assert_same(one, two):
    assert one.layout == two.layout
    assert one.steps.tolist() == two.steps.tolist()
    assert one.flat.keys() == two.flat.keys()
    for name in one.flat:
        assert one.flat[name].tobytes() == two.flat[name].tobytes(), name
    for name in one.measured:
        assert one.measured[name].tolist() == two.measured[name].tolist(), name
    for name in one.layout.arrays:
        for mine, theirs in zip(one.arrays[name], two.arrays[name], strict=True):
            assert mine.tolist() == theirs.tolist(), name
            assert mine.dtype == theirs.dtype


def test_every_row_has_every_column_of_the_end(path):
    columns, reader = read(path)
    assert reader.layout == THIRD
    assert reader.note() is None
    assert columns.steps.tolist() == [0, 1, 5, 6, 9]
    assert columns.measured["loss"].tolist() == [False, False, True, True, False]
    assert np.isnan(columns.flat["loss"][2])
    assert np.isposinf(columns.flat["loss"][3])
    assert np.signbit(columns.flat["acc"][2])
    assert columns.flat["late"][4] == 5e-324
    values, offsets = columns.arrays["hist/counts"]
    assert (values.tolist(), offsets.tolist()) == ([7, 8, 9, 1], [0, 0, 0, 0, 3, 4])
    assert values.dtype == np.uint32
    assert columns.arrays["old"][1].tolist() == [0, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("rows_per_group", [1, 3, 8192])
def test_the_closed_record_is_the_same_to_the_bit(path, tmp_path, rows_per_group):
    summary = write_parquet(path, tmp_path / "r.parquet", rows_per_group)
    assert (summary.rows, summary.note) == (5, None)
    assert_same(read_parquet(tmp_path / "r.parquet"), read(path)[0])


def test_a_journal_that_ends_with_new_columns_closes_with_them(path, tmp_path):
    path.write_bytes(b"".join(PARTS[:5]))
    assert write_parquet(path, tmp_path / "r.parquet").rows == 4
    assert_same(read_parquet(tmp_path / "r.parquet"), read(path)[0])


def test_cut_at_any_byte_the_whole_blocks_before_it_are_read(path, tmp_path):
    full = read(path)[0]
    for size in range(ENDS[0], len(WHOLE)):
        path.write_bytes(WHOLE[:size])
        whole = max(end for end in ENDS if end <= size)
        rows = [0, 2, 2, 4, 4, 5][ENDS.index(whole)]
        columns, reader = read(path)
        assert columns.steps.tolist() == full.steps.tolist()[:rows]
        assert reader.offset == whole
        assert (reader.note() is None) == (size == whole)
        for name in columns.flat:
            assert columns.flat[name].tobytes() == full.flat[name][:rows].tobytes()


def test_followed_byte_by_byte_it_is_the_same(path):
    path.write_bytes(PARTS[0])
    reader, blocks = JournalReader(path), []
    for place in range(ENDS[0], len(WHOLE)):
        with path.open("ab") as file:
            file.write(WHOLE[place : place + 1])
        blocks += reader.read_new()
    columns = columns_of_block(reader.layout, concatenate(reader.layout, blocks))
    assert_same(columns, read(path)[0])


@pytest.mark.parametrize("place", range(ENDS[1], ENDS[2]))
def test_any_damaged_byte_of_such_a_frame_hides_what_follows(path, place):
    data = bytearray(WHOLE)
    data[place] ^= 0x10
    path.write_bytes(bytes(data))
    columns, reader = read(path)
    assert columns.steps.tolist() == [0, 1]
    assert reader.layout == BASE
    assert reader.note()


def frame(payload):
    length = struct.pack("<I", len(payload))
    checksum = struct.pack("<I", zlib.crc32(payload, zlib.crc32(length)))
    return EXTENSION_MAGIC + length + checksum + payload


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "Expecting value"),
        (b"[]", "no attribute 'keys'"),
        (b'{"occasional": []}', "keys"),
        (b'{"occasional": [], "arrays": {}}', "no column"),
        (b'{"occasional": {}, "arrays": {"a": "uint8"}}', "columns"),
        (b'{"occasional": [1], "arrays": {}}', "printable"),
        (b'{"occasional": ["a", "a"], "arrays": {}}', "once, found 2"),
        (b'{"occasional": ["time/wall"], "arrays": {}}', "once, found 2"),
        (b'{"occasional": ["step"], "arrays": {}}', "once, found 2"),
        (b'{"occasional": [], "arrays": {"old": "float64"}}', "there already"),
        (b'{"occasional": [], "arrays": {"a": "object"}}', "a dtype of"),
        (b'{"occasional": ["a\\u0000"], "arrays": {}}', "printable"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_hostile_frame_with_a_right_checksum_is_refused(path, payload, said):
    path.write_bytes(PARTS[0] + frame(payload) + PARTS[1])
    columns, reader = read(path)
    assert len(columns.steps) == 0
    assert reader.layout == BASE
    assert "expected further columns" in reader.note()
    assert said in reader.note()


def test_a_frame_may_not_claim_more_than_a_layout_holds(path):
    size = struct.pack("<I", journal.MAX_LAYOUT_BYTES + 1)
    path.write_bytes(PARTS[0] + EXTENSION_MAGIC + size + b"\0" * 4)
    assert f"at most {journal.MAX_LAYOUT_BYTES}" in read(path)[1].note()


@pytest.mark.parametrize(
    ("limit", "most", "keys"),
    [("MAX_EXTENSIONS", 3, 3), ("MAX_LAYOUT_BYTES", 100, 2)],
)
def test_frames_are_bounded_in_number_and_in_size(path, monkeypatch, limit, most, keys):
    frames, layout = [], BASE
    for number in range(4):  # of 40 bytes of JSON each
        frames.append(encode_extension(layout, [f"key{number}"], {}))
        layout = extended(layout, [f"key{number}"], {})
    path.write_bytes(b"".join(PARTS[:1] + frames))
    reader = JournalReader(path)
    monkeypatch.setattr(journal, limit, most)
    reader.read_new()
    assert reader.layout.occasional == ("key0", "key1", "key2")[:keys]
    assert f"more than {most}" in reader.note()


def test_a_writer_cannot_add_what_a_reader_refuses():
    with pytest.raises(InputError, match="loss: expected once"):
        encode_extension(SECOND, ["loss"], {})
    with pytest.raises(InputError, match="a dtype of"):
        encode_extension(BASE, [], {"a": "complex64"})
    with pytest.raises(ValueError, match="there already"):
        encode_extension(SECOND, [], {"hist/counts": "uint8"})


def test_a_payload_is_small_and_plain():
    payload = extension.extension_payload(["é"], {"a": "uint8"})
    assert json.loads(payload) == {"occasional": ["é"], "arrays": {"a": "uint8"}}
