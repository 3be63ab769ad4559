"""The doctor's look at the folder of all runs: is there a place, and is there room."""

from __future__ import annotations

import os
import re
from pathlib import Path

from runners.doctor.check import NOT_APPLICABLE, OK, PROBLEM, WARNING, Check

RUN_BYTES = 8.5e6  # a run of 2,000 steps with its checkpoints and its page
LITTLE_BYTES, TOO_LITTLE_BYTES = 1 << 30, 50 << 20
LITTLE_INODES, TOO_LITTLE_INODES = 10_000, 100  # a run makes about twenty files
MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|9p|afs|ceph|lustre|glusterfs|gpfs|beegfs|pvfs2|"
    r"fuse\.(?:sshfs|s3fs|gcsfuse|rclone|glusterfs|juicefs|ceph|blobfuse2?)"
)


def check_folder(root: Path) -> list[Check]:
    """Rows about the folder of all runs, whether it is made yet or not."""
    there = _existing(root)
    place = there if there.is_dir() else there.parent
    return [_folder(root, there), *_room(place), check_file_system("root", place)]


def _existing(path: Path) -> Path:
    """The path, or the nearest one above it that exists."""
    path = path.absolute()
    while not os.path.lexists(path):
        path = path.parent
    return path


def _folder(root: Path, there: Path) -> Check:
    name = "root"
    if not there.is_dir():
        found = f"{there}: expected a folder, found a file in its place"
        return Check(name, PROBLEM, found, "another root, or move the file away")
    if not os.access(there, os.W_OK | os.X_OK):
        advice = "another root, or the right to write there"
        return Check(name, PROBLEM, f"{there}: cannot be written", advice)
    if there != root.absolute():
        made = f"{root}: no such folder yet"
        return Check(name, WARNING, made, "the first run makes it; is the name right?")
    return Check(name, OK, str(root))


def _room(place: Path) -> list[Check]:
    disk = os.statvfs(place)
    free, files = disk.f_bavail * disk.f_frsize, disk.f_favail
    runs = f"room for {int(free / RUN_BYTES)} runs of 2,000 steps"
    space = _amount(
        "free space", free, f"{_size(free)}, {runs}", LITTLE_BYTES, TOO_LITTLE_BYTES
    )
    name = "free inodes"
    if not disk.f_files:
        return [space, Check(name, NOT_APPLICABLE, "this file system counts none")]
    limits = LITTLE_INODES, TOO_LITTLE_INODES
    return [space, _amount(name, files, f"{files:,}", *limits)]


def _amount(name: str, value: int, found: str, little: int, too_little: int) -> Check:
    if value >= little:
        return Check(name, OK, found)
    answer = PROBLEM if value < too_little else WARNING
    return Check(name, answer, found, "make room, or another root")


def check_file_system(what: str, place: Path) -> Check:
    """Whether locks can be relied on below a folder.

    Args:
        what: the folder's part, as the row names it.
        place: the folder.
    """
    name = f"file system of the {what}"
    if not MOUNTS.is_file():
        return Check(name, NOT_APPLICABLE, "this system does not tell")
    kind = _kind(place.resolve())
    if not _NETWORK.fullmatch(kind):
        return Check(name, OK, kind)
    return Check(
        name,
        WARNING,
        f"{kind}: a network file system, where locks may not hold",
        "runs of one machine only, or a local folder and an MLflow server",
    )


def _kind(place: Path) -> str:
    """The type of the file system that a folder is on."""
    best, kind = "", "unknown"
    for line in MOUNTS.read_text().splitlines():
        before, _, after = line.partition(" - ")
        point = _unescaped(before.split()[4])
        # of several mounts on one point the last is the one that is seen
        if place.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def _unescaped(text: str) -> str:
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), text)


def _size(count: int) -> str:
    gigabytes = count / 1e9
    return f"{gigabytes:,.1f} GB" if gigabytes >= 1 else f"{count / 1e6:,.1f} MB"
