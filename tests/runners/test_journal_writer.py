"""The writer of the journal: never far behind, and whole up to its last block."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from analysis.journal import JournalReader
from minigpt.records import RecordLayout, StepRecord
from runners import journal
from runners.journal import JournalWriter

LAYOUT = RecordLayout(scalars=("train/loss",), arrays={"token/loss": "float32"})


def record(step: int, size: int = 3) -> StepRecord:
    return StepRecord(
        step=step,
        scalars=np.array([step / 3]),
        tensors=np.empty(0, np.float32),
        integers=np.empty(0, np.uint64),
        arrays={"token/loss": np.full(size, step, np.float32)},
    )


def steps_on_disk(path) -> list[int]:
    return [step for block in JournalReader(path).blocks() for step in block.steps]


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(journal, "time", clock)
    return clock


@pytest.mark.parametrize(
    "durations",
    [[each] * int(min(4000, 12 / each)) for each in (0.0003, 0.003, 0.04, 0.3, 0.7, 5)]
    + [[0.01] * 60 + [0.4] * 4 + [0.9] * 3 + [0.01] * 60]
    + [[0.01] * count + [0.49] for count in (49, 98, 99)],
    ids=lambda durations: f"{durations[0]}s{len(durations)}",
)
def test_the_disk_is_at_most_a_second_behind(tmp_path, clock, durations):
    """Right before each next record, all that is older than a second is on disk."""
    writer = JournalWriter(tmp_path / "j", LAYOUT)
    made = []
    for step, seconds in enumerate(durations):
        clock.now += seconds
        assert all(clock.now - late <= 1.0 for late in made[writer.rows :])
        made.append(clock.now)
        writer.append(record(step))
    assert writer.rows > 0
    writer.close()
    assert steps_on_disk(tmp_path / "j") == list(range(len(durations)))


def test_quick_steps_are_written_many_at_a_time(tmp_path, clock):
    writer = JournalWriter(tmp_path / "j", LAYOUT)
    for step in range(1000):
        clock.now += 0.003
        writer.append(record(step))
    writer.close()
    assert len(JournalReader(tmp_path / "j").read_new()) < 10


def test_many_quick_steps_do_not_gather_without_end(tmp_path, clock):
    writer = JournalWriter(tmp_path / "j", LAYOUT)
    for step in range(journal.MAX_RECORDS):
        writer.append(record(step))
    assert writer.rows == journal.MAX_RECORDS
    writer.close()


def test_what_was_written_is_there_without_closing(tmp_path):
    writer = JournalWriter(tmp_path / "j", LAYOUT)
    writer.append(record(0))
    writer.flush()
    assert steps_on_disk(tmp_path / "j") == [0]
    assert writer.last.step == 0
    writer.close()


def test_a_journal_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "j").write_bytes(b"evidence")
    with pytest.raises(FileExistsError):
        JournalWriter(tmp_path / "j", LAYOUT)
    assert (tmp_path / "j").read_bytes() == b"evidence"


class _Tight:
    """A file on a disk with room for so many more bytes; partial writes happen."""

    def __init__(self, file, room):
        self._file, self.room = file, room

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._file.write(data[: self.room])
        self.room -= taken
        return taken

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [0, 1, 30, 200])
def test_a_block_without_room_is_cut_off_again(tmp_path, room):
    path = tmp_path / "j"
    writer = JournalWriter(path, LAYOUT)
    writer.append(record(0))
    writer.flush()
    whole = path.read_bytes()
    tight = writer._file = _Tight(writer._file, room)
    writer.append(record(1, size=100))
    with pytest.raises(OSError, match="No space left on device") as caught:
        writer.flush()
    assert caught.value.filename == str(path)
    assert path.read_bytes() == whole
    assert writer.rows == 1

    tight.room = 10_000  # somebody made room: nothing is lost
    writer.close()
    assert steps_on_disk(path) == [0, 1]
    assert JournalReader(path).read_new()
    assert writer.rows == 2


def test_a_partial_write_is_continued(tmp_path):
    writer = JournalWriter(tmp_path / "j", LAYOUT)

    class Slow(_Tight):
        def write(self, data):
            return self._file.write(data[:7])

    writer._file = Slow(writer._file, 0)
    writer.append(record(0))
    writer.close()
    assert steps_on_disk(tmp_path / "j") == [0]


def test_closing_without_room_closes_the_file_all_the_same(tmp_path):
    writer = JournalWriter(tmp_path / "j", LAYOUT)
    file = writer._file
    writer._file = _Tight(file, 5)
    writer.append(record(0))
    with pytest.raises(OSError, match="No space"):
        writer.close()
    assert file.closed
    assert steps_on_disk(tmp_path / "j") == []
