"""Rows of an epoch swap places so that chosen ones meet in the batch of step K.

No row is added or lost. It acts on the epoch's order before a loader cuts it into
batches, so the stratified loader takes the meeting apart again. The run differs
from its twin from the first touched batch of that epoch on, not only from K.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minigpt.corpus import has_word
from minigpt.injections.base import Injection, InjectionConfig
from minigpt.records import InputError

SELECTIONS = ("word", "rarest")


@dataclass(kw_only=True)
class RiggedOrderConfig(InjectionConfig):
    """Which rows meet.

    Attributes:
        rows: how many rows are brought together in batch K.
        select: "word" (rows that contain ``word``) or "rarest" (rows whose rarest
            token is rarest in training).
        word: the word looked for, with ``select: word``.
    """

    rows: int = 3
    select: str = "word"
    word: str = "written"

    def __post_init__(self) -> None:
        if self.select not in SELECTIONS:
            raise InputError(
                f"injection.select: expected one of {', '.join(SELECTIONS)}; "
                f"got {self.select!r}"
            )
        if self.rows < 1:
            raise InputError(f"injection.rows: expected at least 1, got {self.rows}")


class RiggedOrder(Injection):
    """Swap the chosen rows into batch K of its epoch."""

    config: RiggedOrderConfig

    def check(self) -> None:
        """There must be enough such rows, and room for them in one batch."""
        self._chosen = self._choose()
        rows = self.config.rows
        if rows > self.batch_size:
            raise InputError(
                f"injection.rows: expected at most the batch size "
                f"({self.batch_size}), got {rows}"
            )
        if rows > len(self._chosen):
            raise InputError(
                f"injection.rows: expected at most the {len(self._chosen)} training "
                f"rows with {self.config.word!r}, got {rows}"
            )
        self._chosen = self._chosen[:rows]

    def _choose(self) -> np.ndarray:
        rows = self.dataset.rows
        if self.config.select == "word":
            texts = enumerate(self.dataset.texts)
            hits = [i for i, text in texts if has_word(text, self.config.word)]
            return np.array(hits, dtype=np.int64)
        counts = self.dataset.token_counts
        rarest = np.array([counts[row].min() for row in rows])
        return np.argsort(rarest, kind="stable")

    def on_order(self, epoch: int, order: np.ndarray) -> np.ndarray:
        """Swap positions in the epoch that holds batch K; others stay."""
        batches = len(order) // self.batch_size
        if epoch != self.step // batches:
            return order
        order = order.copy()
        start = (self.step % batches) * self.batch_size
        slots = range(start, start + self.batch_size)
        present = [slot for slot in slots if order[slot] in self._chosen]
        free = [slot for slot in slots if slot not in present]
        position = {int(row): index for index, row in enumerate(order)}
        for row in self._chosen:
            here = position[int(row)]
            if here not in slots:
                slot = free.pop(0)
                order[here], order[slot] = order[slot], order[here]
        return order
