"""The journal: the append-only file a run writes while it trains, and its reader.

Every step's record is in it exactly (NaN, inf, -0.0), and a run killed at any
moment leaves a file of which all complete blocks can be read::

    header   MAGIC  u32 length  layout as JSON  u32 crc32(length + JSON)
    block    BLOCK_MAGIC  u32 length  u32 crc32(length + payload)  payload

``analysis.blocks`` describes the payload, ``analysis.extension`` a frame between
blocks that adds columns. The reader can follow a file that is still growing, and
takes nothing on trust: lengths are capped before memory is taken, and what follows
the first damaged byte is reported, never guessed at.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from analysis.blocks import (
    MAX_META_BYTES,
    Block,
    decode_payload,
    encode_payload,
    meta_length,
)
from analysis.extension import (
    EXTENSION_MAGIC,
    MAX_EXTENSIONS,
    extended,
    extension_payload,
    layout_after,
)
from minigpt.records import InputError, RecordLayout, StepRecord

MAGIC = b"\x93AUTOPSY-JOURNAL\n"
BLOCK_MAGIC = b"\x93BLK"
MAX_FRAME_BYTES = 256 << 20  # a longer payload is damage, not data
MAX_LAYOUT_BYTES = 16 << 20
ARRAY_DTYPES = frozenset(
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64".split()
)
_U32 = struct.Struct("<I")
_FRAME_BYTES = len(BLOCK_MAGIC) + 2 * _U32.size


class NotBegun(InputError):
    """The process died while it wrote the header: nothing was recorded."""


def encode_header(layout: RecordLayout) -> bytes:
    """The bytes that a journal of this layout begins with.

    Raises:
        InputError: the layout has a name or dtype that the reader would refuse.
    """
    check_layout(layout, "record layout")
    text = json.dumps(layout.to_json()).encode()
    length = _U32.pack(len(text))
    return MAGIC + length + text + _U32.pack(zlib.crc32(text, zlib.crc32(length)))


def encode_block(layout: RecordLayout, records: Sequence[StepRecord]) -> bytes:
    """The bytes to append for these records.

    Records too large for one frame become several; no records give no bytes. An
    array column that a record does not mention is stored as empty.

    Raises:
        ValueError: a record does not fit the layout (width, dtype or name).
    """
    if not records:
        return b""
    payload = encode_payload(layout, records)
    if len(payload) > MAX_FRAME_BYTES or meta_length(payload) > MAX_META_BYTES:
        half = len(records) // 2
        if not half:
            raise ValueError(
                f"record of step {records[0].step}: expected at most "
                f"{MAX_FRAME_BYTES} bytes, found {len(payload)}"
            )
        first, second = records[:half], records[half:]
        return encode_block(layout, first) + encode_block(layout, second)
    return _frame(BLOCK_MAGIC, payload)


def encode_extension(
    layout: RecordLayout, occasional: Sequence[str], arrays: Mapping[str, str]
) -> bytes:
    """The bytes that add columns to a journal of this layout.

    Raises:
        InputError: a name or dtype that the reader would refuse.
    """
    check_layout(extended(layout, occasional, arrays), "further columns")
    return _frame(EXTENSION_MAGIC, extension_payload(occasional, arrays))


def _frame(mark: bytes, payload: bytes) -> bytes:
    length = _U32.pack(len(payload))
    checksum = _U32.pack(zlib.crc32(payload, zlib.crc32(length)))
    return b"".join((mark, length, checksum, payload))


def layout_from_json(text: bytes | str, source: str) -> RecordLayout:
    """The layout in ``text``, checked; ``source`` names it in an error.

    Raises:
        InputError: it is not a layout this code understands.
    """
    try:
        layout = RecordLayout.from_json(json.loads(text))
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{source}: expected a record layout as JSON, found {error!r:.200}"
        ) from None
    check_layout(layout, source)
    return layout


def check_layout(layout: RecordLayout, source: str) -> None:
    """Refuse names that are not plain text or not unique, and odd array dtypes.

    Raises:
        InputError: naming the first offending column.
    """
    groups = (layout.scalars, layout.tensors, layout.integers, layout.occasional)
    groups = (("step",), *groups, tuple(layout.arrays), tuple(layout.constants))
    names = [name for group in groups for name in group]
    for name in names:
        if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= 512):
            raise InputError(
                f"{source}: expected column names of 1 to 512 printable characters, "
                f"found {name!r:.80}"
            )
    [(name, count)] = Counter(names).most_common(1)
    if count > 1:
        raise InputError(f"{source}: column {name}: expected once, found {count} times")
    for name, dtype in layout.arrays.items():
        if not (isinstance(dtype, str) and dtype in ARRAY_DTYPES):
            raise InputError(
                f"{source}: array {name}: expected a dtype of "
                f"{', '.join(sorted(ARRAY_DTYPES))}, found {dtype!r:.80}"
            )
    for name, text in layout.constants.items():
        if not (isinstance(text, str) and text.isprintable()):
            raise InputError(
                f"{source}: constant {name}: expected plain text, found {text!r:.80}"
            )


def read_header(file: BinaryIO) -> RecordLayout:
    """Read the header of a journal; the file then stands at its first block.

    Raises:
        InputError: the file does not begin with a complete, undamaged header;
            ``NotBegun`` if it ends within it.
    """
    source = str(getattr(file, "name", "journal"))
    magic, length = file.read(len(MAGIC)), file.read(_U32.size)
    if not MAGIC.startswith(magic):
        raise InputError(f"{source}: expected a journal, found {magic!r}")
    size = _U32.unpack(length)[0] if len(length) == _U32.size else 0
    if size > MAX_LAYOUT_BYTES:
        raise InputError(
            f"{source}: header: expected at most {MAX_LAYOUT_BYTES} bytes, found {size}"
        )
    text, checksum = file.read(size), file.read(_U32.size)
    if len(checksum) < _U32.size:
        raise NotBegun(f"{source}: expected a journal, found an unfinished header")
    if _U32.unpack(checksum)[0] != zlib.crc32(text, zlib.crc32(length)):
        raise InputError(f"{source}: header: expected its checksum, found damage")
    return layout_from_json(text, f"{source}: header")


class JournalReader:
    """Reads a journal block by block, also while it is being written.

    Attributes:
        path: the file.
        layout: its columns as far as the file was read; it may grow.
        offset: the byte after the last complete block read. A writer that resumes
            a killed run cuts the file there first, or what it appends is hidden.

    Raises:
        InputError: no such file, or it does not begin as a journal does.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._note: str | None = None
        self._extensions, self._extension_bytes = 0, 0
        with self._open() as file:
            self.layout = read_header(file)
            self.offset = file.tell()

    def blocks(self) -> Iterator[Block]:
        """The complete blocks written since the last call, one at a time.

        Raises:
            InputError: the file has gone.
        """
        with self._open() as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(self.offset)
            while self.offset < size:
                block, problem = self._next(file, size - self.offset)
                if problem:
                    break
                self.offset = file.tell()
                if block:
                    yield block
            self._note = self._describe(problem if self.offset < size else "", size)

    def read_new(self) -> list[Block]:
        """All complete blocks written since the last call.

        Raises:
            InputError: the file has gone.
        """
        return list(self.blocks())

    def note(self) -> str | None:
        """What the last complete read left behind, or None if that was nothing.

        The bytes at the end of a growing file may become a block later; damage in
        the middle never does, and hides all that follows it.
        """
        return self._note

    def _open(self) -> BinaryIO:
        if not self.path.is_file():
            found = "a folder" if self.path.is_dir() else "no such file"
            raise InputError(f"{self.path}: expected a journal, found {found}")
        try:
            return self.path.open("rb")
        except OSError as error:
            raise InputError(
                f"{self.path}: expected a readable journal, found {error.strerror}"
            ) from None

    def _next(self, file: BinaryIO, left: int) -> tuple[Block | None, str]:
        """The next frame: its block, None if it adds columns; or what is wrong."""
        head = file.read(min(_FRAME_BYTES, left))
        mark, length = head[: len(BLOCK_MAGIC)], head[len(BLOCK_MAGIC) :][: _U32.size]
        if not any(known.startswith(mark) for known in (BLOCK_MAGIC, EXTENSION_MAGIC)):
            return None, f"expected the mark of a block, found {mark!r}"
        if len(head) < _FRAME_BYTES:
            return None, "found an unfinished block"
        size, checksum = _U32.unpack(length)[0], _U32.unpack(head[-_U32.size :])[0]
        most = MAX_FRAME_BYTES if mark == BLOCK_MAGIC else MAX_LAYOUT_BYTES
        if size > most:
            return None, f"expected at most {most} bytes, found {size}"
        if size > left - _FRAME_BYTES:
            return None, "found an unfinished block"
        payload = file.read(size)
        if zlib.crc32(payload, zlib.crc32(length)) != checksum:
            return None, "expected a block with its checksum, found damage"
        try:
            if mark == BLOCK_MAGIC:
                return decode_payload(self.layout, payload), ""
            self._extend(payload)
        except ValueError as error:
            kind = "whole records" if mark == BLOCK_MAGIC else "further columns"
            return None, f"expected {kind}, found {error}"
        return None, ""

    def _extend(self, payload: bytes) -> None:
        self._extensions += 1
        self._extension_bytes += len(payload)
        if self._extensions > MAX_EXTENSIONS:
            raise ValueError(f"more than {MAX_EXTENSIONS} frames of them")
        if self._extension_bytes > MAX_LAYOUT_BYTES:
            raise ValueError(f"more than {MAX_LAYOUT_BYTES} bytes of them")
        layout = layout_after(self.layout, payload)
        check_layout(layout, "the journal")
        self.layout = layout

    def _describe(self, problem: str, size: int) -> str | None:
        place = f"{self.path.name}: byte {self.offset}"
        if size < self.offset:
            return f"{place}: expected at least as many bytes, found {size}: cut short"
        if not problem:
            return None
        left = size - self.offset
        return f"{place}: {problem}; {left} bytes from there on were not read"
