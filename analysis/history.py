"""The history of one run: its record, read from the run folder and checked.

``load`` is the one door through which runs reach the analysis. What it returns has the
steps 0, 1, 2, ... without gap or double, from a file whose hash is the manifest's or
whose every block has the right checksum. The steps of a run that a script logged are
those that it chose: larger and larger, and no more than that.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.blocks import Columns
from analysis.facts import RunFacts, facts_of_manifest
from analysis.logged import LOGGED, Declared, declared_of_manifest, read_as_ours
from analysis.record_files import JOURNAL as JOURNAL
from analysis.record_files import MANIFEST, declared_record, read_record
from analysis.record_files import PARQUET as PARQUET
from minigpt.records import PER_TENSOR, InputError

MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 64 << 20


@dataclass(frozen=True, eq=False, repr=False)
class RunHistory:
    """All that was recorded of one run. The arrays it gives out are read-only.

    Attributes:
        name: what the run is called.
        folder: where it was read from.
        steps: int64, shape (n,).
        data: every column, by name.
        facts: what a blind diagnosis may know besides the record.
        notes: what a reader of a report should be told about the reading.
        logged: what only a run has that a script logged; None for one of our trainer.
    """

    name: str
    folder: Path
    steps: np.ndarray
    data: Columns
    facts: RunFacts
    notes: list[str] = field(default_factory=list)
    logged: Declared | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        """Short: the arrays themselves would fill pages."""
        size = f"{len(self)} steps, {len(self.columns)} columns"
        return f"RunHistory({self.name!r}, {size}, {self.facts.status})"

    @property
    def columns(self) -> list[str]:
        """All names, in the order of the record."""
        layout = self.data.layout
        return [*self.data.flat, *layout.arrays, *layout.constants]

    @property
    def tensors(self) -> list[str]:
        """Parameter tensors of which at least one per-tensor column exists."""
        found = {
            name.removeprefix(prefix): None
            for name in self.data.flat
            for prefix in PER_TENSOR
            if name.startswith(prefix)
        }
        return list(found)

    @property
    def constants(self) -> dict[str, str]:
        """Text columns with one value for the whole run."""
        return dict(self.data.layout.constants)

    def has(self, name: str) -> bool:
        """Whether the record has a column of this name."""
        layout = self.data.layout
        return any(
            name in group for group in (self.data.flat, layout.arrays, layout.constants)
        )

    def scalar(self, name: str) -> np.ndarray:
        """A scalar, tensor or occasional column.

        Returns:
            float64, shape (n,); NaN where an occasional column was not measured.

        Raises:
            InputError: there is no such column.
        """
        column = self.data.flat.get(name)
        if column is None or column.dtype == np.uint64:
            raise self._missing(name, "a scalar column")
        values = column.astype(np.float64, copy=False)
        values.flags.writeable = False
        return values

    def measured(self, name: str) -> np.ndarray:
        """Where a scalar, tensor or occasional column was measured at all.

        Returns:
            bool, shape (n,); a measured NaN counts as measured.

        Raises:
            InputError: there is no such column.
        """
        mask = self.data.measured.get(name)
        return np.ones(len(self.scalar(name)), bool) if mask is None else mask

    def integer(self, name: str) -> np.ndarray:
        """An integer column: uint64, shape (n,).

        Raises:
            InputError: there is no such column.
        """
        column = self.data.flat.get(name)
        if column is None or column.dtype != np.uint64:
            raise self._missing(name, "an integer column")
        return column

    def array(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """An array column, all steps one after another.

        Returns:
            values, shape (m,), and offsets int64, shape (n + 1,): the entries of
            row i are ``values[offsets[i]:offsets[i + 1]]``.

        Raises:
            InputError: there is no such column.
        """
        if name not in self.data.arrays:
            raise self._missing(name, "an array column")
        return self.data.arrays[name]

    def _missing(self, name: str, kind: str) -> InputError:
        if self.has(name):
            return InputError(
                f"run {self.name}: {name}: expected {kind}, found another"
            )
        close = difflib.get_close_matches(name, self.columns, n=3)
        hint = f"close: {', '.join(close)}" if close else "nothing close to it"
        return InputError(f"run {self.name}: expected column {name}, found {hint}")


def _replay_notes(manifest: dict[str, Any]) -> Iterator[str]:
    """What a reader must know of resumes whose replay was not the record."""
    for one in manifest.get("resumes", []):
        if isinstance(differs := one.get("differs"), dict):
            yield (
                f"when the run was resumed at step {one['at_step']}, steps that were "
                f"recorded came out otherwise, from step "
                f"{differs.get('first_step')!s:.20} on: the record may be that of two "
                "different runs"
            )


def load(folder: str | Path) -> RunHistory:
    """Read a run folder: a closed run, or a running, killed or half written one.

    ``record.parquet`` is read if its hash is the manifest's. If it is not, or the
    manifest has none, a whole journal is read instead, and the notes say so.

    Raises:
        InputError: not a run folder, or its record is damaged, not contiguous, or
            not the one that the manifest describes.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    facts = facts_of_manifest(manifest)
    notes: list[str] = []
    columns = read_record(folder, declared_record(folder, manifest), notes)
    logged = None
    if manifest.get("kind") == LOGGED:
        _check_increasing(folder, columns.steps)
        logged = declared_of_manifest(manifest)
        columns = read_as_ours(columns, logged, notes)
    else:
        _check_contiguous(folder, columns.steps)
    if not len(columns.steps):
        notes.append("the record has no steps")
    if facts.status != "finished":
        notes.append(f"the run's status is {facts.status}")
    notes += _replay_notes(manifest)
    for part in (columns.steps, *columns.flat.values(), *columns.measured.values()):
        part.flags.writeable = False
    for values, offsets in columns.arrays.values():
        values.flags.writeable = offsets.flags.writeable = False
    name = manifest.get("name")
    name = name if isinstance(name, str) and name else folder.resolve().name
    return RunHistory(name, folder, columns.steps, columns, facts, notes, logged)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder.

    Raises:
        InputError: there is none, or it is not a JSON object of this schema.
    """
    path = folder / MANIFEST
    if not path.is_file():
        found = f"no {MANIFEST} in it" if folder.is_dir() else "no such folder"
        raise InputError(f"{folder}: expected a run folder, found {found}")
    try:
        size = path.stat().st_size
        if size > MAX_MANIFEST_BYTES:
            raise ValueError(f"{size} bytes")
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected a JSON object, found {str(error) or repr(error):.200}"
        ) from None
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: expected a JSON object, found {manifest!r:.80}")
    version = manifest.get("schema_version", MANIFEST_VERSION)
    if version != MANIFEST_VERSION:
        raise InputError(
            f"{path}: schema_version: expected {MANIFEST_VERSION}, "
            f"found {version!r:.80}"
        )
    return manifest


def _check_contiguous(folder: Path, steps: np.ndarray) -> None:
    wrong = np.flatnonzero(steps != np.arange(len(steps)))
    if not len(wrong):
        return
    expected, found = int(wrong[0]), int(steps[wrong[0]])
    if 0 <= found < expected:
        raise InputError(f"{folder}: step {found}: expected once, found again")
    raise InputError(f"{folder}: step {expected}: missing, found step {found} instead")


def _check_increasing(folder: Path, steps: np.ndarray) -> None:
    wrong = np.flatnonzero(np.diff(steps) <= 0)
    if len(wrong) or (len(steps) and steps[0] < 0):
        row = int(wrong[0]) + 1 if len(wrong) else 0
        before = f"more than {steps[row - 1]}" if row else "0 or more"
        raise InputError(f"{folder}: step: expected {before}, found {steps[row]}")
