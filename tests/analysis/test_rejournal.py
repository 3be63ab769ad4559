"""A closed record becomes a journal again, bit for bit."""

from __future__ import annotations

import pytest

from analysis import rejournal
from analysis.blocks import columns_of_block, concatenate
from analysis.journal import JournalReader, encode_block, encode_header
from analysis.parquet import read_parquet, write_parquet
from minigpt.records import TRAIN_LOSS, RecordLayout
from tests.analysis.conftest import LAYOUT, build_records

BARE = RecordLayout(scalars=(TRAIN_LOSS,))


def bits(columns) -> dict[str, bytes]:
    found = {name: column.tobytes() for name, column in columns.flat.items()}
    found |= {f"measured {k}": mask.tobytes() for k, mask in columns.measured.items()}
    for name, (values, offsets) in columns.arrays.items():
        found[name] = values.tobytes() + offsets.tobytes()
    return found | {"step": columns.steps.tobytes()}


@pytest.mark.parametrize("layout", [LAYOUT, BARE], ids=["all kinds", "one column"])
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 20])
def test_every_bit_comes_back(tmp_path, monkeypatch, layout, rows):
    monkeypatch.setattr(rejournal, "ROWS_PER_BLOCK", 7)
    first, again = tmp_path / "first.bin", tmp_path / "again.bin"
    records = build_records(rows, layout, odd=True)
    first.write_bytes(encode_header(layout) + encode_block(layout, records))
    write_parquet(first, tmp_path / "record.parquet")
    closed = read_parquet(tmp_path / "record.parquet")
    again.write_bytes(rejournal.encode_journal(closed))
    reader = JournalReader(again)
    block = concatenate(reader.layout, reader.read_new())
    assert reader.layout == layout
    assert reader.note() is None
    assert bits(columns_of_block(reader.layout, block)) == bits(closed)
