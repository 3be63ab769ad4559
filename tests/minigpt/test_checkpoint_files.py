"""What lies on disk: whole or not counted, checked when read, rotated with care."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file

from minigpt.checkpoint import (
    CheckpointConfig,
    CheckpointWriter,
    list_checkpoints,
    read_checkpoint,
)
from minigpt.records import InputError
from minigpt.snapshot import Snapshot, take_snapshot
from minigpt.training import Session
from tests.minigpt.runs import make_plan, record


@pytest.fixture(scope="module")
def snapshot():
    session = Session(make_plan(steps=4))
    record(session)
    return take_snapshot(session)


def small(step, weight=1.0, moment=0.0):
    """A snapshot of one weight, as far as files are concerned."""
    tensors = {
        "param/w": np.array([weight], dtype=np.float32),
        "exp_avg/w": np.array([moment], dtype=np.float32),
    }
    return Snapshot(step, tensors, {"step_counter": float(step)})


def write_all(folder, snapshots, keep=3):
    writer = CheckpointWriter(folder, CheckpointConfig(keep=keep))
    for snapshot in snapshots:
        writer.write(snapshot)
    writer.close()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_two_files_that_need_no_pickle(tmp_path, snapshot):
    write_all(tmp_path, [snapshot])
    assert names(tmp_path) == ["step-00000004.json", "step-00000004.safetensors"]
    document = json.loads((tmp_path / "step-00000004.json").read_text())
    assert (document["step"], document["finite"]) == (4, True)
    tensors = load_file(tmp_path / "step-00000004.safetensors")
    assert set(tensors) == set(snapshot.tensors)
    kinds = {name.split("/")[0] for name in tensors}
    assert kinds == {"param", "exp_avg", "exp_avg_sq", "rng"}
    for name, array in tensors.items():
        assert array.tobytes() == snapshot.tensors[name].tobytes()


def test_what_was_written_is_what_is_read(tmp_path, snapshot):
    write_all(tmp_path, [snapshot])
    found = read_checkpoint(tmp_path, 4)
    assert found.step == 4
    assert found.finite
    assert {n: a.tobytes() for n, a in found.tensors.items()} == {
        n: a.tobytes() for n, a in snapshot.tensors.items()
    }
    plain = json.loads(json.dumps(snapshot.facts))
    assert {key: found.facts[key] for key in plain} == plain


def test_what_was_left_half_written_does_not_count(tmp_path):
    write_all(tmp_path, [small(5)])
    (tmp_path / "step-00000006.safetensors").write_bytes(b"no document: not finished")
    (tmp_path / "step-00000007.json.tmp").write_bytes(b"{")
    (tmp_path / "step-00000007.safetensors.tmp").write_bytes(b"x")
    (tmp_path / "notes.json").write_text("{}")
    assert list_checkpoints(tmp_path) == [5]
    write_all(tmp_path, [small(6), small(7)])  # and is in nobody's way
    assert list_checkpoints(tmp_path) == [5, 6, 7]
    assert [read_checkpoint(tmp_path, step).step for step in (5, 6, 7)] == [5, 6, 7]


def test_no_folder_holds_no_checkpoint(tmp_path):
    assert list_checkpoints(tmp_path / "nowhere") == []


# -- damage ------------------------------------------------------------------------


def flip_byte(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_damaged_byte_is_found_and_the_file_named(tmp_path, at):
    write_all(tmp_path, [small(3)])
    flip_byte(tmp_path / "step-00000003.safetensors", at)
    with pytest.raises(InputError, match=r"00003\.safetensors: expected sha256"):
        read_checkpoint(tmp_path, 3)


def test_missing_files_are_named(tmp_path):
    write_all(tmp_path, [small(3)])
    with pytest.raises(InputError, match=r"step-00000009\.json"):
        read_checkpoint(tmp_path, 9)
    (tmp_path / "step-00000003.safetensors").unlink()
    with pytest.raises(InputError, match=r"step-00000003\.safetensors: cannot be read"):
        read_checkpoint(tmp_path, 3)


@pytest.mark.parametrize("text", ["{", "", "[]", '{"schema_version": 9}', "{}"])
def test_a_document_that_is_none_of_ours_is_refused(tmp_path, text):
    write_all(tmp_path, [small(3)])
    (tmp_path / "step-00000003.json").write_text(text)
    with pytest.raises(InputError, match=r"step-00000003\.json: expected"):
        read_checkpoint(tmp_path, 3)


# -- rotation ----------------------------------------------------------------------


@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf])
def test_the_newest_finite_one_outlives_all_that_follow(tmp_path, weight):
    healthy = [small(step) for step in (10, 20)]
    sick = [small(step, weight) for step in range(30, 90, 10)]
    write_all(tmp_path, healthy + sick, keep=2)
    assert list_checkpoints(tmp_path) == [20, 70, 80]
    assert [read_checkpoint(tmp_path, s).finite for s in (20, 70, 80)] == [
        True,
        False,
        False,
    ]
    assert len(names(tmp_path)) == 6  # both files of a checkpoint go together
    write_all(tmp_path, [small(90)], keep=2)
    assert list_checkpoints(tmp_path) == [80, 90]


def test_finite_is_about_the_weights():
    assert small(1).finite
    assert small(1, moment=np.inf).finite
    assert not small(1, weight=np.nan).finite


def test_only_sick_ones_are_rotated_as_usual(tmp_path):
    write_all(tmp_path, [small(s, np.nan) for s in (1, 2, 3)], keep=1)
    assert list_checkpoints(tmp_path) == [3]


def test_a_damaged_document_does_not_stop_the_next_checkpoint(tmp_path):
    write_all(tmp_path, [small(1), small(2)], keep=2)
    (tmp_path / "step-00000002.json").write_text("{")
    write_all(tmp_path, [small(3, np.nan)], keep=1)
    assert list_checkpoints(tmp_path) == [1, 3]  # the newest that is known to be finite


# -- errors of the thread that writes ----------------------------------------------


def test_a_write_that_fails_is_raised_when_it_is_waited_for(tmp_path):
    folder = tmp_path / "checkpoints"
    writer = CheckpointWriter(folder, CheckpointConfig())
    folder.rmdir()
    folder.write_bytes(b"a file where the folder was")
    writer.write(small(1))
    with pytest.raises(OSError, match="checkpoints"):
        writer.wait()
    with pytest.raises(OSError, match="checkpoints"):
        writer.write(small(2))  # the next one does not pass it over
    with pytest.raises(OSError, match="checkpoints"):
        writer.close()


def test_a_failed_replacement_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    write_all(tmp_path, [small(1)])

    def refuse(source, target):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(os, "replace", refuse)
    writer = CheckpointWriter(tmp_path, CheckpointConfig())
    writer.write(small(2))
    with pytest.raises(OSError, match="No space left"):
        writer.close()
    assert list_checkpoints(tmp_path) == [1]
    assert read_checkpoint(tmp_path, 1).tensors["param/w"].tolist() == [1.0]
