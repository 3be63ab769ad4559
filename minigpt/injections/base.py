"""What an injection is: a config, and four seams that do nothing by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from minigpt.batches import Batch, Dataset


@dataclass(kw_only=True)
class InjectionConfig:
    """What every fault's config has.

    Attributes:
        kind: the fault's name, equal to its file's.
        predictions: what its maker expects to see, as data for ``analysis``; the
            training never reads it.
    """

    kind: str
    predictions: list[Any] = field(default_factory=list)

    uses_step: ClassVar[bool] = True  # whether injection_step matters to the fault


@dataclass(frozen=True)
class OptimizerState:
    """Views into the live optimizer state; writing to them changes the run.

    Attributes:
        exp_avg: parameter name -> first moment, shape of the parameter.
        exp_avg_sq: parameter name -> second moment, shape of the parameter.
    """

    exp_avg: Mapping[str, Tensor]
    exp_avg_sq: Mapping[str, Tensor]


class Injection:
    """Base of all faults; every seam leaves training bit for bit as it was.

    Args:
        config: the fault's parameters.
        step: K, the step at which the fault acts.
        dataset: the rows trained on.
        batch_size: rows a batch.
    """

    def __init__(
        self, config: InjectionConfig, step: int, dataset: Dataset, batch_size: int
    ) -> None:
        self.config = config
        self.step = step
        self.dataset = dataset
        self.batch_size = batch_size
        self.check()

    def check(self) -> None:
        """Refuse parameters that cannot work, before step 0.

        Raises:
            InputError: names the parameter, what is possible and what arrived.
        """

    def check_tensors(self, names: list[str]) -> None:
        """Refuse a target that the model does not have.

        Raises:
            InputError: names the parameter and the tensors there are.
        """

    def on_order(self, epoch: int, order: np.ndarray) -> np.ndarray:
        """The epoch's row order, before any loader cuts it into batches."""
        return order

    def on_batch(self, step: int, batch: Batch) -> Batch:
        """The batch of this step, before the forward pass."""
        return batch

    def on_gradients(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        """The gradients of this step, in place, before they are clipped."""

    def on_optimizer_state(self, step: int, state: OptimizerState) -> None:
        """The optimizer's state, in place, after the update of this step."""
