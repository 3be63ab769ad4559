"""A run folder is read exactly, or refused with one line that says why."""

import json
import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import parquet
from analysis.history import load
from analysis.journal import encode_block, encode_header
from analysis.parquet import write_parquet
from minigpt.records import InputError, RecordLayout


def assert_same(build, one, other):
    """Every value of two histories has the same bits."""
    assert one.columns == other.columns
    assert build.bits(one.steps) == build.bits(other.steps)
    layout = build.layout
    for name in (*layout.scalars, *layout.tensors, *layout.occasional):
        assert build.bits(one.scalar(name)) == build.bits(other.scalar(name)), name
        assert build.bits(one.measured(name)) == build.bits(other.measured(name)), name
    for name in layout.integers:
        assert build.bits(one.integer(name)) == build.bits(other.integer(name)), name
    for name in layout.arrays:
        for left, right in zip(one.array(name), other.array(name), strict=True):
            assert build.bits(left) == build.bits(right), name


# -- what comes back ---------------------------------------------------------------


@pytest.mark.parametrize("closed", [False, True])
def test_the_history_is_the_records(build, tmp_path, closed):
    records = build.records(20, odd=True)
    history = load(build.run(tmp_path, records, closed=closed, keep_journal=False))
    assert len(history) == 20
    assert history.steps.tolist() == list(range(20))
    for index, name in enumerate(build.layout.scalars):
        expected = np.array([record.scalars[index] for record in records])
        assert build.bits(history.scalar(name)) == build.bits(expected)
    for index, name in enumerate(build.layout.tensors):
        expected = np.array([record.tensors[index] for record in records])
        found = history.scalar(name)
        assert found.dtype == np.float64
        assert build.bits(found.astype(np.float32)) == build.bits(expected)
    for index, name in enumerate(build.layout.integers):
        expected = np.array([record.integers[index] for record in records])
        assert build.bits(history.integer(name)) == build.bits(expected)
    for name, dtype in build.layout.arrays.items():
        values, offsets = history.array(name)
        assert values.dtype == dtype
        for row, record in enumerate(records):
            part = values[offsets[row] : offsets[row + 1]]
            assert build.bits(part) == build.bits(record.arrays[name])


def test_parquet_and_journal_give_the_same_bits(build, tmp_path):
    records = build.records(50, odd=True)
    closed = build.run(tmp_path / "closed", records, closed=True, keep_journal=False)
    open_run = build.run(tmp_path / "open", records)
    assert_same(build, load(closed), load(open_run))


@pytest.mark.parametrize("rows_per_group", [1, 7, 8, 1000])
def test_row_groups_do_not_change_the_values(build, tmp_path, rows_per_group):
    records = build.records(25, odd=True)
    folder = build.run(tmp_path, records)
    expected = load(folder)
    summary = write_parquet(
        folder / "journal.bin", folder / "record.parquet", rows_per_group
    )
    record = {"sha256": summary.sha256, "rows": summary.rows}
    manifest = {"status": "finished", "facts": build.facts, "record": record}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "journal.bin").unlink()
    assert_same(build, load(folder), expected)
    groups = pq.ParquetFile(folder / "record.parquet").metadata.num_row_groups
    assert groups == {1: 7, 7: 6, 8: 4, 1000: 1}[rows_per_group]  # frames hold 4


@pytest.mark.parametrize("closed", [False, True])
def test_a_measured_nan_is_not_an_absent_value(build, tmp_path, closed):
    records = build.records(4)
    for record, value in zip(records, [np.nan, None, -0.0, None], strict=True):
        record.occasional = {} if value is None else {"val/loss": value}
    history = load(build.run(tmp_path, records, closed=closed))
    assert history.measured("val/loss").tolist() == [True, False, True, False]
    values = history.scalar("val/loss")
    assert np.isnan(values).tolist() == [True, True, False, True]
    assert np.signbit(values[2])
    assert history.measured("train/loss").all()


def test_names_tensors_and_constants(build, tmp_path):
    history = load(build.run(tmp_path, build.records(2)))
    layout = build.layout
    assert history.name == "a-run"
    assert history.folder == tmp_path
    assert history.tensors == list(build.tensors)
    assert history.constants == {"precision/dtype": "float32"}
    groups = (layout.scalars, layout.tensors, layout.integers, layout.occasional)
    expected = {name for group in groups for name in group}
    expected |= layout.arrays.keys() | layout.constants.keys()
    assert set(history.columns) == expected
    assert all(history.has(name) for name in expected)
    assert not history.has("step")


def test_a_run_without_a_name_is_called_by_its_folder(build, tmp_path):
    folder = build.run(tmp_path / "my-run", build.records(1), name=None)
    assert load(folder).name == "my-run"


def test_a_missing_column_is_named_with_close_ones(build, tmp_path):
    history = load(build.run(tmp_path, build.records(2)))
    with pytest.raises(InputError, match="column train/lost, found close: train/loss"):
        history.scalar("train/lost")
    with pytest.raises(InputError, match="nothing close"):
        history.measured("zzzzzz")
    with pytest.raises(InputError, match="train/loss: expected an integer column"):
        history.integer("train/loss")
    with pytest.raises(InputError, match="state/param_hash: expected a scalar column"):
        history.scalar("state/param_hash")
    with pytest.raises(InputError, match="train/loss: expected an array column"):
        history.array("train/loss")


@pytest.mark.parametrize("closed", [False, True])
def test_nobody_can_write_into_a_history(build, tmp_path, closed):
    history = load(build.run(tmp_path, build.records(3), closed=closed))
    arrays = [history.scalar("train/loss"), history.integer("state/param_hash")]
    arrays += [history.steps, history.scalar("val/loss"), *history.array("token/loss")]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[:1] = 0


# -- states of a run folder --------------------------------------------------------


@pytest.mark.parametrize("closed", [False, True])
def test_no_steps_are_legal_and_noted(build, tmp_path, closed):
    history = load(build.run(tmp_path, [], closed=closed, keep_journal=False))
    assert len(history) == 0
    assert history.scalar("train/loss").shape == (0,)
    assert history.array("token/loss")[1].tolist() == [0]
    assert "the record has no steps" in history.notes


@pytest.mark.parametrize("status", ["running", "killed", "failed"])
def test_a_half_written_run_is_read_up_to_the_last_whole_block(build, tmp_path, status):
    folder = build.run(tmp_path, build.records(10), status=status)
    whole = (folder / "journal.bin").read_bytes()
    (folder / "journal.bin").write_bytes(whole[:-1])
    history = load(folder)
    assert len(history) == 8
    assert any("unfinished block" in note for note in history.notes)
    assert f"the run's status is {status}" in history.notes


def test_a_finished_run_needs_no_notes(build, tmp_path):
    folder = build.run(tmp_path, build.records(5), closed=True, keep_journal=False)
    assert load(folder).notes == []


def test_parquet_wins_over_the_journal_if_its_hash_is_right(build, tmp_path):
    folder = build.run(tmp_path, build.records(5), closed=True)
    other = build.journal(build.records(5, seed=1))
    (folder / "journal.bin").write_bytes(b"".join(other))
    history = load(folder)
    assert history.scalar("train/loss")[0] == build.records(1)[0].scalars[0]
    assert history.notes == ["journal.bin is there too; record.parquet was read"]


def flip_a_byte(path):
    contents = bytearray(path.read_bytes())
    contents[100] ^= 1
    path.write_bytes(contents)


def test_a_damaged_parquet_is_refused(build, tmp_path):
    folder = build.run(tmp_path, build.records(5), closed=True, keep_journal=False)
    flip_a_byte(folder / "record.parquet")
    with pytest.raises(
        InputError, match=r"record.parquet: expected sha256 \w+..., found"
    ):
        load(folder)


def test_a_whole_journal_replaces_a_damaged_parquet(build, tmp_path):
    folder = build.run(tmp_path, build.records(5), closed=True)
    expected = load(folder)
    flip_a_byte(folder / "record.parquet")
    history = load(folder)
    assert_same(build, history, expected)
    [note] = history.notes
    assert "expected sha256" in note
    assert "whole journal.bin was read instead" in note


def test_a_torn_journal_does_not_replace_a_damaged_parquet(build, tmp_path):
    folder = build.run(tmp_path, build.records(9), closed=True)
    flip_a_byte(folder / "record.parquet")
    whole = (folder / "journal.bin").read_bytes()
    (folder / "journal.bin").write_bytes(whole[:-1])
    with pytest.raises(InputError, match=r"journal.bin is not whole either"):
        load(folder)
    last = build.journal(build.records(9))[-1]
    (folder / "journal.bin").write_bytes(whole[: -len(last)])
    with pytest.raises(InputError, match="expected 9 rows, found 8"):
        load(folder)


def test_a_parquet_that_the_manifest_does_not_know_yet(build, tmp_path):
    folder = build.run(tmp_path, build.records(5), closed=True, record=None)
    assert "expected its sha256" in load(folder).notes[0]
    (folder / "journal.bin").unlink()
    with pytest.raises(InputError, match=r"expected its sha256 in manifest.json"):
        load(folder)


def test_a_closed_run_without_its_parquet(build, tmp_path):
    folder = build.run(tmp_path, build.records(5), closed=True)
    (folder / "record.parquet").unlink()
    assert load(folder).notes == [
        "record.parquet is missing; journal.bin was read instead"
    ]
    (folder / "journal.bin").unlink()
    with pytest.raises(InputError, match=r"expected record.parquet or journal.bin"):
        load(folder)


def test_rows_other_than_the_manifests_are_refused(build, tmp_path):
    folder = build.run(tmp_path, build.records(5), closed=True)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["record"]["rows"] = 6
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="expected 6 rows, found 5"):
        load(folder)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([0, 1, 3, 4], "step 2: missing, found step 3"),
        ([0, 1, 1, 2], "step 1: expected once, found again"),
        ([0, 1, 2, 0], "step 0: expected once, found again"),
        ([1, 2, 3], "step 0: missing, found step 1"),
        ([0, -5], "step 1: missing, found step -5"),
        ([0, 2**63 - 1], "step 1: missing"),
    ],
)
def test_gaps_and_doubles_are_named(build, tmp_path, steps, complaint, closed):
    records = build.records(len(steps))
    for record, step in zip(records, steps, strict=True):
        record.step = step
    with pytest.raises(InputError, match=complaint):
        load(build.run(tmp_path, records, closed=closed))


# -- manifests ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", "[" * 100_000, '"a"', '{"a": ' + "9" * 5000 + "}"]
)
def test_a_manifest_that_is_no_object_is_refused(build, tmp_path, text):
    build.run(tmp_path, build.records(1))
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match="expected a JSON object") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_not_a_run_folder(build, tmp_path):
    with pytest.raises(InputError, match="found no such folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"found no manifest.json in it"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="expected a JSON object"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"status": "odd"}, "manifest status: expected one of running.*found 'odd'"),
        ({"facts": []}, "manifest facts: expected dict"),
        ({"facts": {"optimizer": 1}}, "facts.optimizer: expected dict, found 1"),
        ({"facts": {"clip": "1.0"}}, "facts.clip: expected int or float or NoneType"),
        ({"facts": {"seed": True}}, "facts.seed: expected int, found True"),
        ({"facts": {"clip": float("nan")}}, "facts.clip: expected"),
        ({"facts": {"clip": 10**400}}, "facts.clip: expected"),  # no float holds it
        ({"facts": {"schedule": {"a": []}}}, "facts.schedule.a: expected"),
        ({"facts": {"tensors": {"w": 1}}}, "facts.tensors.w: expected dict"),
        ({"facts": {"vocabulary": {"file": "../secret"}}}, "vocabulary.file: expected"),
        ({"resumes": 5}, "manifest resumes: expected list, found 5"),
        ({"resumes": [5]}, "manifest resumes.0: expected dict, found 5"),
        ({"resumes": [{}]}, "manifest resumes.0.at_step: expected int, found None"),
        ({"record": [1]}, "record: expected an object"),
        ({"schema_version": 99}, "schema_version: expected 1, found 99"),
    ],
)
def test_an_odd_manifest_is_refused(build, tmp_path, change, complaint):
    folder = build.run(tmp_path, build.records(1), **change)
    with pytest.raises(InputError, match=complaint):
        load(folder)


def test_the_facts_are_those_of_the_manifest(build, tmp_path):
    facts = build.facts | {"tensors": {"embed.weight": {"shape": [512, 64]}}}
    found = load(build.run(tmp_path, build.records(1), facts=facts)).facts
    assert (found.optimizer, found.beta1, found.beta2) == ("adamw", 0.9, 0.95)
    assert (found.eps, found.weight_decay, found.clip) == (1e-8, 0.1, 1.0)
    assert (found.seed, found.data_seed, found.batch_size) == (42, 42, 8)
    assert (found.status, found.precision) == ("finished", "fp32")
    assert found.vocabulary == "vocabulary.json"
    assert found.schedule["warmup"] == 100
    assert found.tensors["embed.weight"]["shape"] == [512, 64]
    assert found.unknown == ()


def test_where_a_run_went_on_is_a_fact_of_it(build, tmp_path):
    resumes = [{"at_step": 5, "secret": 1}, {"at_step": 7}]
    facts = load(build.run(tmp_path, build.records(9), resumes=resumes)).facts
    assert facts.resumed_at == (5, 7)
    assert "secret" not in repr(facts)
    assert load(build.run(tmp_path, build.records(9))).facts.resumed_at == ()


def test_a_replay_that_was_not_the_record_is_a_note(build, tmp_path):
    resumes = [{"at_step": 5}, {"at_step": 7, "differs": {"first_step": 6}}]
    notes = load(build.run(tmp_path, build.records(9), resumes=resumes)).notes
    (note,) = [one for one in notes if "came out otherwise" in one]
    assert "resumed at step 7" in note
    assert "from step 6 on" in note


def test_no_clipping_is_not_an_unknown_clip(build, tmp_path):
    facts = load(build.run(tmp_path, build.records(1), facts={"clip": None})).facts
    assert facts.clip is None
    assert "clip" not in facts.unknown
    assert "beta2" in facts.unknown


def test_the_facts_do_not_tell_what_was_done_to_the_run(build, tmp_path):
    secret = {"kind": "v_corrupt-secret", "step": 500}
    facts = build.facts | {"injection": secret, "experiment": "secret"}
    facts["optimizer"] = facts["optimizer"] | {"injection": secret}
    facts["vocabulary"] = facts["vocabulary"] | {"injection": secret}
    folder = build.run(
        tmp_path, build.records(1), facts=facts, injection=secret, experiment="secret"
    )
    assert "secret" not in repr(load(folder).facts)


# -- the Parquet file --------------------------------------------------------------


def close_over(folder, build, write):
    """A run folder whose record.parquet was written by somebody else."""
    write(folder / "record.parquet")
    record = {"sha256": parquet.sha256_of(folder / "record.parquet")}
    manifest = {"status": "finished", "facts": build.facts, "record": record}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_foreign_parquet_with_the_right_hash_is_refused(build, tmp_path):
    table = pa.table({"step": [0, 1]})
    folder = close_over(tmp_path, build, lambda path: pq.write_table(table, path))
    with pytest.raises(InputError, match="expected a record layout"):
        load(folder)
    folder = close_over(tmp_path, build, lambda path: path.write_bytes(b"PAR1" * 9))
    with pytest.raises(InputError, match="expected a Parquet record"):
        load(folder)


@pytest.mark.parametrize("kind", ["other column", "nulls"])
def test_a_parquet_that_is_not_its_layout_is_refused(build, tmp_path, kind):
    layout = RecordLayout(scalars=("train/loss",), arrays={"token/loss": "float32"})
    schema = parquet.schema_of(layout)
    columns = {
        "step": pa.array([0, 1]),
        "train/loss": pa.array([1.0, 2.0]),
        "token/loss": pa.array([[1.0], [None]], schema.field("token/loss").type),
    }
    if kind == "other column":
        columns["train/loss"] = pa.array([1, 2])
        schema = pa.table(columns).schema.with_metadata(schema.metadata)
    table = pa.table(columns, schema)
    folder = close_over(tmp_path, build, lambda path: pq.write_table(table, path))
    complaint = (
        "columns of its layout" if kind == "other column" else "no nulls, found 1"
    )
    with pytest.raises(InputError, match=complaint):
        load(folder)


def test_bytes_of_a_parquet_never_raise_anything_else(build, tmp_path):
    records = build.records(30, odd=True)
    folder = build.run(tmp_path, records, closed=True, keep_journal=False)
    whole = (folder / "record.parquet").read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole[: rng.integers(1, len(whole))])
        if rng.random() < 0.7:
            damaged = bytearray(whole)
            for place in rng.integers(0, len(whole), 3):
                damaged[place] ^= int(rng.integers(1, 256))
        try:
            load(close_over(tmp_path, build, lambda p, b=damaged: p.write_bytes(b)))
        except InputError:
            refused += 1
    assert refused > 50


def test_a_failed_write_leaves_the_old_file_and_no_other(build, tmp_path, monkeypatch):
    folder = build.run(tmp_path, build.records(5), closed=True)
    old = (folder / "record.parquet").read_bytes()
    names = sorted(os.listdir(folder))

    def fail(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(parquet.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_parquet(folder / "journal.bin", folder / "record.parquet")
    assert (folder / "record.parquet").read_bytes() == old
    assert sorted(os.listdir(folder)) == names


def test_a_torn_journal_is_compacted_with_a_note(build, tmp_path):
    header, *blocks = build.journal(build.records(8))
    (tmp_path / "journal.bin").write_bytes(b"".join([header, *blocks])[:-1])
    summary = write_parquet(tmp_path / "journal.bin", tmp_path / "record.parquet")
    assert summary.rows == 4
    assert "unfinished block" in summary.note


def test_writing_holds_one_row_group_in_memory(build, tmp_path, monkeypatch):
    path = tmp_path / "journal.bin"
    with path.open("wb") as file:
        file.write(encode_header(build.layout))
        for start in range(0, 400, 10):
            file.write(encode_block(build.layout, build.records(10, start=start)))
    largest = []
    table = parquet._table

    def spy(layout, blocks):
        largest.append(sum(map(len, blocks)))
        return table(layout, blocks)

    monkeypatch.setattr(parquet, "_table", spy)
    assert write_parquet(path, tmp_path / "a.parquet", rows_per_group=64).rows == 400
    assert max(largest) == 60
    largest.clear()
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 1)
    assert write_parquet(path, tmp_path / "b.parquet").rows == 400
    assert max(largest) == 10


def test_loading_two_thousand_steps_is_fast(build, tmp_path):
    layout = RecordLayout(
        scalars=tuple(f"s/{i}" for i in range(45)),
        tensors=tuple(f"t/{i}" for i in range(150)),
        arrays={"a": "float32", "b": "uint16"},
    )
    folder = build.run(tmp_path, build.records(2000, layout), layout, closed=True)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        load(folder)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5
