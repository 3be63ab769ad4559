"""The journal gives back what was written, and nothing else, whatever the bytes."""

import json
import struct
import time
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import journal
from analysis.blocks import concatenate
from analysis.journal import JournalReader, encode_block, encode_header
from minigpt.records import InputError, RecordLayout, StepRecord


def frame(payload, size=None):
    length = struct.pack("<I", len(payload) if size is None else size)
    crc = struct.pack("<I", zlib.crc32(payload, zlib.crc32(length)))
    return journal.BLOCK_MAGIC + length + crc + payload


def fingerprint(build, block):
    fixed = (block.steps, block.scalars, block.tensors, block.integers)
    arrays = {name: tuple(map(build.bits, pair)) for name, pair in block.arrays.items()}
    return [build.bits(part) for part in fixed], arrays, repr(block.occasional)


def write(tmp_path, *parts):
    path = tmp_path / "journal.bin"
    path.write_bytes(b"".join(parts))
    return path


def test_every_bit_comes_back(build, tmp_path):
    records = build.records(11, odd=True)
    reader = JournalReader(write(tmp_path, *build.journal(records)))
    whole = concatenate(reader.layout, reader.read_new())
    assert reader.layout == build.layout
    assert whole.steps.tolist() == list(range(11))
    for part in ("scalars", "tensors", "integers"):
        expected = np.stack([getattr(record, part) for record in records])
        assert build.bits(getattr(whole, part)) == build.bits(expected)
    for name in build.layout.arrays:
        lengths, values = whole.arrays[name]
        assert lengths.tolist() == [len(record.arrays[name]) for record in records]
        expected = np.concatenate([record.arrays[name] for record in records])
        assert build.bits(values) == build.bits(expected)
    expected = [
        (row, name, value)
        for row, record in enumerate(records)
        for name, value in record.occasional.items()
    ]
    assert repr(whole.occasional) == repr(expected)
    assert reader.note() is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 5e-324, 0.1 + 0.2])
def test_an_occasional_value_is_exact(build, tmp_path, value):
    record = build.records(1)[0]
    record.occasional = {"val/loss": np.float64(value)}
    path = write(tmp_path, *build.journal([record]))
    [block] = JournalReader(path).read_new()
    assert repr(block.occasional) == repr([(0, "val/loss", value)])


def test_a_growing_file_is_followed(build, tmp_path):
    header, first, second, third = build.journal(build.records(12))
    path = write(tmp_path, header)
    reader = JournalReader(path)
    seen = []
    for part in (first, second[:30], second[30:] + third[:5], third[5:]):
        with path.open("ab") as file:
            file.write(part)
        seen.append([block.steps.tolist() for block in reader.read_new()])
    assert seen == [[[0, 1, 2, 3]], [], [[4, 5, 6, 7]], [[8, 9, 10, 11]]]
    assert reader.note() is None


def test_a_torn_tail_is_told(build, tmp_path):
    header, first, second = build.journal(build.records(8))
    reader = JournalReader(write(tmp_path, header, first, second[:-3]))
    assert len(reader.read_new()) == 1
    start, left = len(header + first), len(second) - 3
    assert f"byte {start}: found an unfinished block; {left} bytes" in reader.note()
    assert reader.offset == start  # where a resumed run would go on


def test_damage_in_the_middle_hides_what_follows_and_is_told(build, tmp_path):
    header, first, second, third = build.journal(build.records(12))
    damaged = second[:40] + bytes([second[40] ^ 1]) + second[41:]
    reader = JournalReader(write(tmp_path, header, first, damaged, third))
    assert [block.steps.tolist() for block in reader.read_new()] == [[0, 1, 2, 3]]
    start, left = len(header + first), len(second + third)
    assert f"byte {start}: " in reader.note()
    assert "damage" in reader.note()
    assert f"{left} bytes" in reader.note()


def test_a_file_cut_behind_the_reader_is_told(build, tmp_path):
    header, first = build.journal(build.records(4))
    path = write(tmp_path, header, first)
    reader = JournalReader(path)
    reader.read_new()
    path.write_bytes(header)
    assert reader.read_new() == []
    assert "cut short" in reader.note()


def test_a_frame_longer_than_the_cap_is_damage_and_takes_no_memory(build, tmp_path):
    parts = build.journal(build.records(4))
    size = journal.MAX_FRAME_BYTES + 1
    path = write(tmp_path, *parts, frame(b"", size=size))
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + size)  # sparse: the bytes are "there"
    reader = JournalReader(path)
    assert len(reader.read_new()) == 1
    assert f"at most {journal.MAX_FRAME_BYTES} bytes" in reader.note()


META = {"n": 1, "occasional": []}


@pytest.mark.parametrize(
    "meta",
    [
        b"",
        b"[" * 100_000,
        b"[]",
        json.dumps({"n": 1}).encode(),
        json.dumps(META | {"n": 2**70}).encode(),
        json.dumps(META | {"n": 10**7}).encode(),
        json.dumps(META | {"n": -1}).encode(),
        json.dumps(META | {"n": True}).encode(),
        json.dumps(META | {"n": 0}).encode(),
        json.dumps(META | {"occasional": {}}).encode(),
        json.dumps(META | {"occasional": [[1, "val/loss", 1.0]]}).encode(),
        json.dumps(META | {"occasional": [[0, "train/loss", 1.0]]}).encode(),
        json.dumps(META | {"occasional": [[0, [], 1.0]]}).encode(),
        json.dumps(META | {"occasional": [[0, "val/loss", "1"]]}).encode(),
        json.dumps(META | {"occasional": [[0, "val/loss"]]}).encode(),
        json.dumps(META | {"occasional": [[0, "val/loss", 1.0]] * 2}).encode(),
    ],
)
def test_a_forged_payload_with_a_right_checksum_is_refused(build, tmp_path, meta):
    record = build.records(1)[0]
    record.occasional = {}
    header, good = build.journal([record])
    honest = good[len(journal.BLOCK_MAGIC) + 8 :]
    honest_meta = 4 + struct.unpack_from("<I", honest)[0]
    numbers = honest[honest_meta:]
    assert frame(honest) == good
    forged = frame(struct.pack("<I", len(meta)) + meta + numbers)
    reader = JournalReader(write(tmp_path, header, forged))
    assert reader.read_new() == []
    assert "expected whole records" in reader.note()


def test_bytes_left_over_in_a_payload_are_refused(build, tmp_path):
    header, good = build.journal(build.records(1))
    forged = frame(good[len(journal.BLOCK_MAGIC) + 8 :] + b"\0")
    reader = JournalReader(write(tmp_path, header, forged))
    assert reader.read_new() == []
    assert "1 bytes too many" in reader.note()


def test_array_lengths_beyond_the_payload_are_refused(build, tmp_path):
    layout = RecordLayout(scalars=(), arrays={"a": "float64"})
    meta = json.dumps(META).encode()
    numbers = struct.pack("<q", 0) + struct.pack("<I", 2**32 - 1)
    forged = frame(struct.pack("<I", len(meta)) + meta + numbers)
    reader = JournalReader(write(tmp_path, encode_header(layout), forged))
    assert reader.read_new() == []
    assert "do not fit" in reader.note()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_bytes_make_a_wrong_record(build, tmp_path_factory, data):
    parts = build.journal(build.records(10, odd=True), block=3)
    whole = b"".join(parts)
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    if damaged and data.draw(st.booleans()):
        places = st.tuples(st.integers(0, len(damaged) - 1), st.integers(1, 255))
        for place, flip in data.draw(st.lists(places, max_size=4)):
            damaged[place] ^= flip
    path = tmp_path_factory.getbasetemp() / "fuzz.bin"
    path.write_bytes(whole)
    original = [fingerprint(build, block) for block in JournalReader(path).read_new()]
    path.write_bytes(damaged)
    try:
        reader = JournalReader(path)
    except InputError:
        assert bytes(damaged[: len(parts[0])]) != parts[0]
        return
    found = [fingerprint(build, block) for block in reader.read_new()]
    assert found == original[: len(found)]
    intact = len(parts[0]) + sum(map(len, parts[1 : 1 + len(found)]))
    assert (reader.note() is None) == (len(damaged) == intact)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_right_checksum_over_wrong_bytes_is_survived(build, tmp_path_factory, data):
    header, good = build.journal(build.records(4, odd=True))
    payload = bytearray(good[len(journal.BLOCK_MAGIC) + 8 :])
    places = st.tuples(st.integers(0, 300), st.integers(1, 255))
    for place, flip in data.draw(st.lists(places, min_size=1, max_size=4)):
        payload[place] ^= flip
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    path = tmp_path_factory.getbasetemp() / "forged.bin"
    path.write_bytes(header + frame(bytes(payload)))
    reader = JournalReader(path)
    blocks = reader.read_new()
    assert (reader.note() is None) == (len(blocks) == 1)


@settings(max_examples=100, deadline=None)
@given(tail=st.binary(max_size=200))
def test_any_bytes_after_a_header_are_survived(build, tmp_path_factory, tail):
    path = tmp_path_factory.getbasetemp() / "tail.bin"
    path.write_bytes(encode_header(build.layout) + tail)
    reader = JournalReader(path)
    assert reader.read_new() == []
    assert (reader.note() is None) == (tail == b"")


@pytest.mark.parametrize(
    ("layout", "complaint"),
    [
        (RecordLayout(("a", "a")), "column a: expected once"),
        (RecordLayout(("a",), tensors=("a",)), "column a: expected once"),
        (RecordLayout(("step",)), "column step: expected once"),
        (RecordLayout(("a\n",)), "printable"),
        (RecordLayout(("",)), "printable"),
        (RecordLayout(("\ud800",)), "printable"),
        (RecordLayout((3,)), "printable"),
        (RecordLayout((), arrays={"a": "object"}), "array a: expected a dtype"),
        (RecordLayout((), constants={"a": 1}), "constant a: expected plain text"),
    ],
)
def test_an_odd_layout_is_refused_on_both_sides(tmp_path, layout, complaint):
    with pytest.raises(InputError, match=complaint):
        encode_header(layout)
    text = json.dumps(layout.to_json())
    with pytest.raises(InputError, match=f"here: .*{complaint}"):
        journal.layout_from_json(text, "here")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema_version": 1}', "[" * 100_000, '{"schema_version":9}'],
)
def test_a_header_that_is_no_layout_is_refused(text):
    with pytest.raises(InputError, match=r"^here: "):
        journal.layout_from_json(text, "here")


@pytest.mark.parametrize("contents", [b"", b"PAR1", b"\x93AUTOPSY", b"\x80\x04K\x01."])
def test_a_foreign_or_unborn_file_is_refused(tmp_path, contents):
    with pytest.raises(InputError, match="expected a journal, found"):
        JournalReader(write(tmp_path, contents))


def test_no_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match="found no such file"):
        JournalReader(tmp_path / "journal.bin")
    with pytest.raises(InputError, match="found a folder"):
        JournalReader(tmp_path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"scalars": np.zeros(2)}, "scalars: expected 3 values"),
        ({"tensors": np.zeros(10)}, "tensors: expected 1-d arrays"),
        ({"integers": np.array([-1, 1])}, "integers: expected 1-d arrays"),
        ({"occasional": {"val/lost": 1.0}}, "not in the layout: {'val/lost'}"),
        ({"arrays": {"token/lost": np.zeros(1)}}, "not in the layout: {'token/lost'}"),
        ({"arrays": {"token/loss": np.zeros(1)}}, "token/loss: expected 1-d arrays"),
        ({"arrays": {"data/batch_tokens": np.array([70000])}}, "data/batch_tokens"),
    ],
)
def test_a_record_that_would_lose_something_is_refused(build, change, complaint):
    record = build.records(1)[0]
    for name, value in change.items():
        setattr(record, name, value)
    with pytest.raises(ValueError, match=complaint):
        encode_block(build.layout, [record])


def test_records_too_large_for_one_frame_become_several(build, tmp_path, monkeypatch):
    records = build.records(8)
    monkeypatch.setattr(journal, "MAX_FRAME_BYTES", 600)
    encoded = encode_block(build.layout, records)
    reader = JournalReader(write(tmp_path, encode_header(build.layout), encoded))
    blocks = reader.read_new()
    assert len(blocks) > 1
    assert concatenate(reader.layout, blocks).steps.tolist() == list(range(8))
    monkeypatch.setattr(journal, "MAX_FRAME_BYTES", 100)
    with pytest.raises(ValueError, match="record of step 0: expected at most 100"):
        encode_block(build.layout, records)


def test_no_records_and_no_columns(build, tmp_path):
    assert encode_block(build.layout, []) == b""
    bare, none = RecordLayout(scalars=()), np.empty(0)
    record = StepRecord(0, none, none.astype("f4"), none.astype("u8"))
    path = write(tmp_path, encode_header(bare), encode_block(bare, [record]))
    [block] = JournalReader(path).read_new()
    assert block.steps.tolist() == [0]
    assert block.scalars.shape == (1, 0)


def test_encoding_is_fast():
    layout = RecordLayout(
        scalars=tuple(f"s/{i}" for i in range(45)),
        tensors=tuple(f"t/{i}" for i in range(150)),
        integers=("i/0", "i/1"),
        arrays={"a": "float32", "b": "uint16", "c": "int64", "d": "int64"},
    )
    rng = np.random.default_rng(0)
    records = [
        StepRecord(
            step,
            rng.random(45),
            rng.random(150, dtype=np.float32),
            np.zeros(2, np.uint64),
            {name: np.zeros(70, dtype) for name, dtype in layout.arrays.items()},
        )
        for step in range(300)
    ]
    times = []
    for _ in range(20):
        start = time.perf_counter()
        encode_block(layout, records)
        times.append(time.perf_counter() - start)
    assert min(times) < 5e-3  # 1.5 ms on an idle machine
