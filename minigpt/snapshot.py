"""A session's whole state between two steps, taken and put back bit for bit."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from minigpt.records import InputError
from minigpt.stratify import Violation
from minigpt.training import Session

_GROUPS = ("param", "exp_avg", "exp_avg_sq")


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
