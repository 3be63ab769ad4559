import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from minigpt.atomic import write_atomically


def test_a_file_is_made_or_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.json"
    for data in (b"first", b"second, longer", b""):
        write_atomically(path, data)
        assert path.read_bytes() == data
        assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_the_old_file_is_whole_until_the_new_one_takes_its_place(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    seen = []
    replace = os.replace

    def watch(source, target):
        seen.append((path.read_bytes(), source.read_bytes(), source.parent))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    write_atomically(path, b"new")
    assert seen == [(b"old", b"new", tmp_path)]


def test_an_error_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_two_that_write_one_file_at_once_do_not_meet(tmp_path):
    path, contents = tmp_path / "a.html", [b"1" * 300_000, b"2" * 300_000]

    def write(data):
        for _ in range(20):
            write_atomically(path, data)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write, data) for data in contents]:
            done.result()
    assert [p.name for p in tmp_path.iterdir()] == ["a.html"]
