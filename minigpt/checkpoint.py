"""Checkpoints: safetensors and JSON, atomic, written beside the training thread.

The JSON is written last and names the hash of the tensors and its own, so a checkpoint
either exists whole or does not count. Continuing from one gives bit-identical records.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from minigpt.atomic import write_atomically
from minigpt.records import InputError
from minigpt.stratify import Violation
from minigpt.training import Session

SCHEMA_VERSION = 2
_NAME = re.compile(r"step-(\d{8,})\.json")
_GROUPS = ("param", "exp_avg", "exp_avg_sq")
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


@dataclass(frozen=True)
class Snapshot:
    """A session's whole state between two steps.

    Attributes:
        step: the next step to take.
        tensors: parameters, moments and random states, by group and name.
        facts: step counter, loader position and the rest of the random states.
    """

    step: int
    tensors: dict[str, np.ndarray]
    facts: dict[str, Any]

    @property
    def finite(self) -> bool:
        """Whether every weight is a finite number."""
        return all(
            bool(np.isfinite(array).all())
            for name, array in self.tensors.items()
            if name.startswith("param/")
        )


def take_snapshot(session: Session) -> Snapshot:
    """Copy a session's state; the session may go on at once."""
    tensors = {
        f"{group}/{name}": view.numpy()
        for group, flat in zip(_GROUPS, _buffers(session), strict=True)
        for name, view in session.flat.views(flat.clone()).items()
    }
    kind, keys, position, has_gauss, cached = np.random.get_state()
    version, state, gauss = random.getstate()
    tensors["rng/torch"] = torch.get_rng_state().numpy().copy()
    tensors["rng/numpy"] = keys
    facts = {
        "step_counter": session.optimizer.step_counter,
        "loader_position": session.loader.position,
        "loader_violations": [asdict(one) for one in session.loader.violations],
        "numpy_rng": [kind, position, has_gauss, cached],
        "python_rng": [version, list(state), gauss],
    }
    return Snapshot(session.step, tensors, facts)


def restore(session: Session, snapshot: Snapshot) -> None:
    """Put a session into the state of a snapshot.

    Raises:
        InputError: the snapshot's tensors are not this model's; nothing was changed.
    """
    live = {
        f"{group}/{name}": view
        for group, flat in zip(_GROUPS, _buffers(session), strict=True)
        for name, view in session.flat.views(flat).items()
    }
    _check_shapes(live, snapshot)
    for name, view in live.items():
        view.copy_(torch.from_numpy(snapshot.tensors[name]))
    facts = snapshot.facts
    session.step = snapshot.step
    session.optimizer.step_counter = facts["step_counter"]
    violations = [Violation(**one) for one in facts["loader_violations"]]
    session.loader.resume(facts["loader_position"], violations)
    torch.set_rng_state(torch.from_numpy(snapshot.tensors["rng/torch"].copy()))
    kind, *rest = facts["numpy_rng"]
    np.random.set_state((kind, snapshot.tensors["rng/numpy"], *rest))
    version, state, gauss = facts["python_rng"]
    random.setstate((version, tuple(state), gauss))
    session.resync()


def _check_shapes(live: dict[str, torch.Tensor], snapshot: Snapshot) -> None:
    wanted = {name: tuple(view.shape) for name, view in live.items()}
    found = {
        name: array.shape
        for name, array in snapshot.tensors.items()
        if not name.startswith("rng/")
    }
    for name in {**wanted, **found}:
        if wanted.get(name) != found.get(name):
            raise InputError(
                f"checkpoint of step {snapshot.step}: shape of {name}: expected "
                f"{wanted.get(name, 'no such tensor')}, "
                f"found {found.get(name, 'no such tensor')}"
            )


def _buffers(session: Session) -> tuple[torch.Tensor, ...]:
    optimizer = session.optimizer
    return session.flat.values, optimizer.exp_avg, optimizer.exp_avg_sq


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
