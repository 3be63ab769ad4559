"""Checkpoints: safetensors and JSON, atomic, written beside the training thread.

The JSON is written last and names the hash of the tensors and its own, so a checkpoint
either exists whole or does not count. Continuing from one gives bit-identical records.
"""

from __future__ import annotations

import hashlib
import json
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load, save

from minigpt.atomic import write_atomically
from minigpt.records import InputError
from minigpt.snapshot import Snapshot, take_snapshot
from minigpt.training import Session

SCHEMA_VERSION = 2
_NAME = re.compile(r"step-(\d{8,})\.json")
_OWN_HASH = "document_sha256"


@dataclass(kw_only=True)
class CheckpointConfig:
    """How often and how many.

    Attributes:
        every: steps between two checkpoints; 0 writes none.
        keep: how many are kept; the newest finite one is kept whatever its age.
    """

    every: int = 100
    keep: int = 3

    def __post_init__(self) -> None:
        if self.every < 0:
            raise InputError(
                f"checkpoint.every: expected 0 (never) or more steps, got {self.every}"
            )
        if self.keep < 1:
            raise InputError(f"checkpoint.keep: expected at least 1, got {self.keep}")


class CheckpointWriter:
    """Writes snapshots in a thread of its own, one at a time, and rotates them.

    Args:
        folder: where they go; made if missing.
        config: how often, how many.
    """

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        self.folder = folder
        self._config = config
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        if config.every:
            folder.mkdir(parents=True, exist_ok=True)

    def offer(self, session: Session) -> None:
        """Write a checkpoint if this is the step for one.

        Raises:
            OSError: the one before could not be written.
        """
        if self._config.every and session.step % self._config.every == 0:
            self.write(take_snapshot(session))

    def write(self, snapshot: Snapshot) -> None:
        """Write this snapshot once the one before is done."""
        self.wait()
        self._pending = self._pool.submit(self._write, snapshot)

    def wait(self) -> None:
        """Until the last one is on disk.

        Raises:
            OSError: it could not be written.
        """
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def close(self) -> None:
        """Wait for the last one and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def _write(self, snapshot: Snapshot) -> None:
        stem = self.folder / f"step-{snapshot.step:08d}"
        data = save(snapshot.tensors)
        document = {
            "schema_version": SCHEMA_VERSION,
            "step": snapshot.step,
            "sha256": hashlib.sha256(data).hexdigest(),
            "finite": snapshot.finite,
            **snapshot.facts,
        }
        document[_OWN_HASH] = _hash_of(document)
        write_atomically(stem.with_suffix(".safetensors"), data)
        write_atomically(stem.with_suffix(".json"), json.dumps(document).encode())
        rotate(self.folder, self._config.keep)


def list_checkpoints(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, ascending; empty without a folder."""
    if not folder.is_dir():
        return []
    matches = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def rotate(folder: Path, keep: int) -> None:
    """Remove old checkpoints, never the newest whose weights are all finite."""
    steps = list_checkpoints(folder)
    finite = [step for step in steps if _is_finite(folder, step)]
    spared = set(steps[-keep:]) | set(finite[-1:])
    for step in set(steps) - spared:
        stem = folder / f"step-{step:08d}"
        stem.with_suffix(".json").unlink()  # first: without it the rest counts not
        stem.with_suffix(".safetensors").unlink(missing_ok=True)


def _is_finite(folder: Path, step: int) -> bool:
    """Whether a checkpoint says so; a damaged one is not relied on."""
    try:
        return _document(folder, step).get("finite") is True
    except InputError:
        return False


def _document(folder: Path, step: int) -> dict[str, Any]:
    path = folder / f"step-{step:08d}.json"
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"checkpoint {path}: expected JSON, found {error}") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(
            f"checkpoint {path}: expected schema version {SCHEMA_VERSION}, "
            f"found {version!r}"
        )
    if document.get(_OWN_HASH) != _hash_of(document):
        raise InputError(f"checkpoint {path}: expected its own hash, found another")
    return document


def _hash_of(document: dict[str, Any]) -> str:
    """Hash of a checkpoint's JSON without the hash itself."""
    facts = {key: value for key, value in document.items() if key != _OWN_HASH}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def newest_checkpoint(folder: Path, latest: int) -> tuple[Snapshot | None, list[str]]:
    """The newest undamaged checkpoint that is not beyond a step.

    Args:
        folder: of the checkpoints.
        latest: the first step that is not recorded; a checkpoint beyond it would
            leave a gap.

    Returns:
        The snapshot, None if there is none; and what is wrong with each newer one.
    """
    problems = []
    for step in reversed(list_checkpoints(folder)):
        if step > latest:
            problems.append(f"checkpoint of step {step}: the record ends before it")
            continue
        try:
            return read_checkpoint(folder, step), problems
        except InputError as error:
            problems.append(str(error))
    return None, problems


def read_checkpoint(folder: Path, step: int) -> Snapshot:
    """Read one checkpoint and check its hash.

    Raises:
        InputError: it is missing, damaged or of another schema.
    """
    document = _document(folder, step)
    path = folder / f"step-{step:08d}.safetensors"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"checkpoint {path}: cannot be read: {error}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != document["sha256"]:
        raise InputError(
            f"checkpoint {path}: expected sha256 {document['sha256']}, found {found}"
        )
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise InputError(f"checkpoint {path}: not safetensors: {error}") from error
    return Snapshot(document["step"], tensors, document)
