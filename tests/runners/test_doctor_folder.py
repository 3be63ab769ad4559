"""The doctor on the folder of all runs: there, writable, roomy, local."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from runners.doctor import folder as module
from runners.doctor.check import NOT_APPLICABLE, OK, PROBLEM, WARNING
from runners.doctor.folder import check_file_system, check_folder


def rows(root) -> dict:
    return {row.name: row for row in check_folder(root)}


def test_a_root_that_is_there(tmp_path):
    found = rows(tmp_path)
    assert (found["root"].answer, found["root"].found) == (OK, str(tmp_path))


def test_a_root_that_is_not_there_yet(tmp_path):
    root = tmp_path / "deep" / "new"
    row = rows(root)["root"]
    assert (row.answer, row.found) == (WARNING, f"{root}: no such folder yet")


@pytest.mark.parametrize("below", ["", "deep"])
def test_a_file_in_its_place(tmp_path, below):
    (tmp_path / "file").write_text("")
    row = rows(tmp_path / "file" / below)["root"]
    assert row.answer == PROBLEM
    assert "a file" in row.found


def test_a_link_that_leads_nowhere(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert rows(tmp_path / "link")["root"].answer == PROBLEM


@pytest.mark.parametrize(
    ("free", "answer"),
    [(2 << 30, OK), (1 << 30, OK), ((1 << 30) - 1, WARNING), (50 << 20, WARNING),
     ((50 << 20) - 1, PROBLEM), (0, PROBLEM)],
)  # fmt: skip
def test_free_space(tmp_path, monkeypatch, free, answer):
    disk = SimpleNamespace(f_bavail=free, f_frsize=1, f_files=10**6, f_favail=10**6)
    monkeypatch.setattr(module.os, "statvfs", lambda _: disk)
    row = rows(tmp_path)["free space"]
    assert row.answer == answer
    assert f"room for {int(free / 8.5e6)} runs" in row.found


@pytest.mark.parametrize(
    ("files", "free", "answer"),
    [(10**6, 10_000, OK), (10**6, 9_999, WARNING), (10**6, 99, PROBLEM),
     (0, 0, NOT_APPLICABLE)],
)  # fmt: skip
def test_free_inodes(tmp_path, monkeypatch, files, free, answer):
    disk = SimpleNamespace(f_bavail=2**40, f_frsize=1, f_files=files, f_favail=free)
    monkeypatch.setattr(module.os, "statvfs", lambda _: disk)
    assert rows(tmp_path)["free inodes"].answer == answer


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /net rw - nfs4 server:/x rw
31 30 0:41 / /net/local rw master:3 - tmpfs tmpfs rw
32 22 0:42 / /with\\040space rw - fuse.sshfs me@server:/ rw
33 22 0:43 / /twice rw - cifs //a/b rw
34 22 0:44 / /twice rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("place", "kind", "answer"),
    [
        ("/srv/x", "ext4", OK),
        ("/network", "ext4", OK),
        ("/net/runs", "nfs4", WARNING),
        ("/net", "nfs4", WARNING),
        ("/net/local/runs", "tmpfs", OK),
        ("/with space/runs", "fuse.sshfs", WARNING),
        ("/twice/runs", "xfs", OK),
    ],
)
def test_where_locks_may_not_hold(tmp_path, monkeypatch, place, kind, answer):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    monkeypatch.setattr(module, "MOUNTS", mounts)
    row = check_file_system("root", Path(place))
    assert row.name == "file system of the root"
    assert (row.answer, row.found.partition(":")[0]) == (answer, kind)


def test_a_system_that_does_not_tell_its_mounts(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOUNTS", tmp_path / "none")
    assert check_file_system("root", tmp_path).answer == NOT_APPLICABLE
