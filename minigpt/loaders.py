"""The order in which rows are served: random, or stratified by rare tokens.

The order of an epoch depends on the data seed and the epoch alone, so a loader's
whole state is the number of batches it has served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minigpt.batches import Batch, Dataset, collate
from minigpt.records import InputError
from minigpt.stratify import Spread, Violation, find_violations

# (epoch, order int64 [rows]) -> the order to cut batches from
OnOrder = Callable[[int, np.ndarray], np.ndarray]


@dataclass(kw_only=True)
class LoaderConfig:
    """Which loader serves the rows.

    Attributes:
        kind: "random", or "stratified": a rare token at most once a batch.
        batch_size: rows of a batch.
    """

    kind: str = "random"
    batch_size: int = 8

    def __post_init__(self) -> None:
        kinds = sorted(LOADERS)
        if self.kind not in kinds:
            raise InputError(
                f"loader.kind: expected one of {kinds}, found {self.kind!r}"
            )
        _require_whole("loader.batch_size", self.batch_size, least=1)


class Loader:
    """What both loaders share: each epoch is one permutation, cut into batches.

    Rows that do not fill a batch at the end of the order are left out that epoch.

    Attributes:
        batches_per_epoch: rows // batch size.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        data_seed: int,
        on_order: OnOrder | None = None,
    ) -> None:
        """Serve ``dataset`` from position 0.

        Args:
            dataset: the rows.
            batch_size: rows of a batch.
            data_seed: governs the order, nothing else.
            on_order: may permute an epoch's order before its batches are cut.

        Raises:
            InputError: batch size or seed is no such number, or the batch size
                exceeds the number of rows.
        """
        _require_whole("batch_size", batch_size, least=1)
        _require_whole("data_seed", data_seed, least=0)
        if batch_size > len(dataset):
            raise InputError(
                f"batch_size: expected at most the {len(dataset)} rows of the data, "
                f"found {batch_size}"
            )
        self.batches_per_epoch = len(dataset) // batch_size
        self._dataset = dataset
        self._batch_size = batch_size
        self._data_seed = data_seed
        self._on_order = on_order
        self._position = 0
        self._epoch = -1  # the epoch that was cut last
        self._batches: list[np.ndarray] = []
        self._violations: dict[int, list[Violation]] = {}

    @property
    def position(self) -> int:
        """Batches served so far; set it to resume there.

        Raises:
            InputError: set to something that is no whole number of 0 or more.
        """
        return self._position

    @position.setter
    def position(self, batches: int) -> None:
        _require_whole("loader position", batches, least=0)
        self._position = batches

    @property
    def violations(self) -> list[Violation]:
        """Of the epochs that ``next`` has begun; none for a loader without promise."""
        return [
            v for epoch in sorted(self._violations) for v in self._violations[epoch]
        ]

    def resume(self, position: int, violations: list[Violation]) -> None:
        """Go on where another loader of the same data stood.

        Args:
            position: batches it had served.
            violations: what it had counted up to there.

        Raises:
            InputError: as for ``position``.
        """
        self.position = position
        self._epoch, self._violations = -1, {}
        for one in violations:
            self._violations.setdefault(one.epoch, []).append(one)

    def next(self) -> Batch:
        """Serve the batch at ``position`` and move on."""
        epoch, offset = divmod(self._position, self.batches_per_epoch)
        if epoch != self._epoch:
            self._batches = self.epoch_batches(epoch)
            self._violations[epoch] = self._violations_in(epoch, self._batches)
            self._epoch = epoch
        indices = self._batches[offset]
        rows = [self._dataset.rows[i] for i in indices.tolist()]
        batch = collate(self._position, rows, self._dataset.regular[indices])
        self._position += 1
        return batch

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """Row indices of each batch of one epoch, wherever ``position`` stands.

        Returns:
            ``batches_per_epoch`` int64 arrays of ``batch_size``.

        Raises:
            InputError: ``on_order`` did not return a permutation of its argument.
        """
        rows = len(self._dataset)
        order = np.random.default_rng([self._data_seed, epoch]).permutation(rows)
        if self._on_order is not None:
            order = np.asarray(self._on_order(epoch, order))
            if order.shape != (rows,) or not np.array_equal(
                np.sort(order), np.arange(rows)
            ):
                raise InputError(
                    f"on_order: expected a permutation of {rows} rows, found "
                    f"{np.unique(order).size} rows in an array of shape {order.shape}"
                )
        served = order[: self.batches_per_epoch * self._batch_size]
        return list(self._arrange(served).reshape(-1, self._batch_size))

    def epoch_violations(self, epoch: int) -> list[Violation]:
        """Broken promises in one epoch, wherever ``position`` stands."""
        return self._violations_in(epoch, self.epoch_batches(epoch))

    def _arrange(self, served: np.ndarray) -> np.ndarray:
        return served

    def _violations_in(self, epoch: int, batches: list[np.ndarray]) -> list[Violation]:
        return []


class RandomLoader(Loader):
    """Serves the permutation as it is, and promises nothing about rare tokens."""


class StratifiedLoader(Loader):
    """The same permutation, rearranged: a rare token at most once a batch.

    Rows without conflict stay where they are. Which rows an epoch leaves out is not
    changed either, so that rare tokens are not served less often. What could not be
    achieved is in ``violations``.
    """

    @cached_property
    def _rare(self) -> list[list[int]]:  # row -> its rare tokens, with repetitions
        return [row[self._dataset.rare[row]].tolist() for row in self._dataset.rows]

    def _arrange(self, served: np.ndarray) -> np.ndarray:
        tokens = [set(rare) for rare in self._rare]
        return np.array(Spread(served.tolist(), self._batch_size, tokens).run())

    def _violations_in(self, epoch: int, batches: list[np.ndarray]) -> list[Violation]:
        rare = [[self._rare[row] for row in rows.tolist()] for rows in batches]
        return find_violations(epoch, rare)


LOADERS = {"random": RandomLoader, "stratified": StratifiedLoader}


def make_loader(
    config: LoaderConfig,
    dataset: Dataset,
    data_seed: int,
    on_order: OnOrder | None = None,
) -> Loader:
    """Build the configured loader, at position 0.

    Raises:
        InputError: as ``Loader``.
    """
    return LOADERS[config.kind](dataset, config.batch_size, data_seed, on_order)


def _require_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(
            f"{name}: expected a whole number of {least} or more, found {value!r}"
        )
