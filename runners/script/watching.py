"""A watched model and optimizer: what their hooks measure, as parts of a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from minigpt import records as col
from minigpt.records import InputError, RecordLayout
from runners.script.console import tell
from runners.script.manifest import watched_facts
from runners.script.rows import Update
from runners.script.values import brief
from runners.script.watched_rows import SCALARS, WatchedRows

if TYPE_CHECKING:  # a script without PyTorch can log as well
    import torch

    from minigpt.watch import Watch

_OF_GRADIENTS = (
    col.LR,
    col.GRAD_NORM_PRECLIP,
    col.GRAD_NORM_POSTCLIP,
    col.CLIP_COEF,
    col.NONFINITE_GRADS,
)
_PER_PASS = (col.GRAD_NORM, col.ACT_MEAN_ABS, col.ACT_MAX_ABS)

Locked = Callable[[Callable[[], None]], Callable[[], None]]


def is_watched(layout: RecordLayout) -> bool:
    """Whether the rows of a journal have the observer's columns."""
    return col.STEP_SKIPPED in layout.scalars


class Watching:
    """Feeds the rows of a run with what the observer measures.

    Args:
        model: a module of PyTorch.
        optimizer: what steps it.
        rows: told of cycles and updates.
        locked: puts an action under the run's lock: hooks may be called by the
            threads of the backward pass.

    Raises:
        InputError: one of them is something else, or has nothing to train.

    Attributes:
        layout: of the rows, without the keys of the script.
        facts: what model and optimizer say of themselves.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        rows: WatchedRows,
        locked: Locked,
    ) -> None:
        self._rows = rows
        self._watch = _attach(
            model, optimizer, locked(rows.begin), locked(self._updated)
        )
        self.layout = RecordLayout(
            (col.TIME_WALL, *SCALARS, col.STEP_SKIPPED),
            self._watch.columns,
            (col.PARAM_HASH,),
        )
        self.facts = watched_facts(self._watch, optimizer)
        self._last: Update | None = None
        self._warned = False

    def fits(self, layout: RecordLayout) -> bool:
        """Whether a journal has the columns of this model, and no others of one."""
        return (layout.scalars, layout.tensors, layout.integers) == (
            self.layout.scalars,
            self.layout.tensors,
            self.layout.integers,
        )

    def _updated(self) -> None:
        """The optimizer has stepped: hand its figures to the row."""
        watch = self._watch
        assert watch.update
        if not (watch.went_back or self._warned):
            self._warned = True
            tell(
                "watch: no backward pass through the model's own output was seen, so "
                "that its gradients before clipping are not known"
            )
        figures = (
            watch.rate,
            watch.norm_preclip,
            watch.norm_postclip,
            watch.clip_coef,
            watch.update.update_norm,
            watch.update.param_norm,
            watch.update.relative_update,
            watch.step_counter,
            float(watch.nonfinite_grads),
        )
        self._rows.updated(Update(np.array(figures), watch.row(), watch.param_hash))

    def parts(self, update: Update | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scalars without the time, tensors and integers of a row, in this order.

        Without an update weights and optimizer are as they were.
        """
        found = update or self._standing_still()
        self._last = update or self._last
        scalars = np.append(found.scalars, float(update is None))
        return scalars, found.tensors, np.array([found.param_hash], np.uint64)

    def _standing_still(self) -> Update:
        columns = self.layout.tensors
        if self._last is None:
            nothing = np.full(len(columns), np.nan, np.float32)
            return Update(np.full(len(SCALARS), np.nan), nothing, 0)
        tensors = self._last.tensors.copy()
        scalars = dict(zip(SCALARS, self._last.scalars.tolist(), strict=True))
        scalars |= dict.fromkeys(_OF_GRADIENTS, math.nan)
        scalars |= {col.UPDATE_NORM: 0.0, col.RELATIVE_UPDATE: 0.0}
        for place, name in enumerate(columns):
            if name.startswith(_PER_PASS):
                tensors[place] = np.nan
            elif name.startswith(col.TENSOR_UPDATE_NORM):
                tensors[place] = 0.0
        figures = np.array([scalars[name] for name in SCALARS])
        return Update(figures, tensors, self._last.param_hash)

    def close(self) -> None:
        """Take every hook off the model and the optimizer."""
        self._watch.close()


def _attach(
    model: Any,
    optimizer: Any,
    on_begin: Callable[[], None],
    on_update: Callable[[], None],
) -> Watch:
    import torch

    from minigpt.watch import Watch

    for name, one, kind in (
        ("model", model, torch.nn.Module),
        ("optimizer", optimizer, torch.optim.Optimizer),
    ):
        if not isinstance(one, kind):
            raise InputError(
                f"watch: {name}: expected a torch {kind.__name__}, got {brief(one)}"
            )
    return Watch(model, optimizer, on_begin=on_begin, on_update=on_update)
