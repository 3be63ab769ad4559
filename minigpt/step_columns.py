"""Puts one step's figures into the columns of its record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from minigpt import records as col
from minigpt.batches import Batch, batch_facts
from minigpt.observer import UpdateFacts
from minigpt.records import RecordLayout, StepRecord

SCALARS = (
    col.TIME_WALL,
    col.TRAIN_LOSS,
    col.LR,
    col.LR_DECLARED,
    col.GRAD_NORM_PRECLIP,
    col.GRAD_NORM_POSTCLIP,
    col.CLIP_COEF,
    col.UPDATE_NORM,
    col.PARAM_NORM,
    col.RELATIVE_UPDATE,
    col.STEP_COUNTER,
    col.TOKEN_LOSS_P99,
    col.BATCH_INDEX,
    col.DUPLICATE_ROWS,
    col.RARE_TOKEN_MAX_COUNT,
    col.RARE_TOKEN_ID,
    col.RARE_TOKEN_SHARE,
    col.LOSS_SCALE,
    col.STEP_SKIPPED,
    col.NONFINITE_GRADS,
)
ARRAYS = {
    col.TOKEN_LOSS: "float32",
    col.TOKEN_LOSS_HISTOGRAM: "uint16",
    col.BATCH_TOKENS: "uint16",
    col.BATCH_ROW_LENGTHS: "uint16",
}


NO_UPDATE = UpdateFacts(0.0, 0.0, 0.0)


@dataclass(slots=True)
class StepFacts:
    """Global figures of one step, filled while the step goes on."""

    loss: float = 0.0
    lr: float = 0.0
    lr_declared: float = 0.0
    norm_preclip: float = 0.0
    norm_postclip: float = 0.0
    clip_coef: float = 1.0
    nonfinite_grads: int = 0
    update: UpdateFacts = NO_UPDATE
    step_counter: float = 0.0
    param_hash: int = 0
    loss_scale: float = 1.0
    step_skipped: bool = False
    wall: float = 0.0


class StepColumns:
    """Builds the layout once, then one ``StepRecord`` a step.

    Args:
        rare: bool, shape (vocabulary,), which tokens are rare in training.
        tensor_columns: the observer's columns.
        matrices: names of the matrices whose spectral norm is measured.
    """

    def __init__(
        self,
        rare: np.ndarray,
        tensor_columns: tuple[str, ...],
        matrices: Iterable[str],
    ) -> None:
        self._rare = rare
        spectral = tuple(col.SPECTRAL_NORM + name for name in matrices)
        self.layout = RecordLayout(
            scalars=SCALARS,
            tensors=tensor_columns,
            integers=(col.BATCH_FINGERPRINT, col.PARAM_HASH),
            occasional=(
                col.LOSS_REGULAR,
                col.LOSS_IRREGULAR,
                col.VAL_LOSS,
                col.VAL_LOSS_CAUSAL,
                col.FUTURE_LEAK,
                *spectral,
            ),
            arrays=dict(ARRAYS),
            constants={col.DTYPE: "float32"},
        )

    def record(
        self,
        step: int,
        facts: StepFacts,
        batch: Batch,
        losses: np.ndarray,
        tensors: np.ndarray,
        occasional: dict[str, float],
    ) -> StepRecord:
        """One row.

        Args:
            step: t.
            facts: global figures.
            batch: what was trained on.
            losses: float32, shape (B * T,), nats, with padding.
            tensors: float32, the observer's row.
            occasional: cadence columns; the class losses are added to them.
        """
        data = batch_facts(batch, self._rare)
        token_loss = losses[batch.targets.numpy().reshape(-1) >= 0]
        occasional |= class_losses(token_loss, batch)
        update = facts.update
        scalars = np.array(
            (
                facts.wall,
                facts.loss,
                facts.lr,
                facts.lr_declared,
                facts.norm_preclip,
                facts.norm_postclip,
                facts.clip_coef,
                update.update_norm,
                update.param_norm,
                update.relative_update,
                facts.step_counter,
                percentile_99(token_loss),
                batch.index,
                data.duplicate_rows,
                data.rare_token_max_count,
                data.rare_token_id,
                data.rare_token_share,
                facts.loss_scale,
                facts.step_skipped,
                facts.nonfinite_grads,
            )
        )
        arrays = {
            col.TOKEN_LOSS: token_loss,
            col.TOKEN_LOSS_HISTOGRAM: loss_histogram(token_loss),
            col.BATCH_TOKENS: batch.tokens,
            col.BATCH_ROW_LENGTHS: batch.row_lengths,
        }
        integers = np.array((data.fingerprint, facts.param_hash), dtype=np.uint64)
        return StepRecord(step, scalars, tensors, integers, arrays, occasional)


def percentile_99(values: np.ndarray) -> float:
    """The smallest value that at least 99 % of the values do not exceed.

    NaN sorts last, so one NaN among fewer than a hundred values is the answer.
    """
    rank = -(-values.size * 99 // 100) - 1
    return float(np.partition(values, rank)[rank])


def loss_histogram(token_loss: np.ndarray) -> np.ndarray:
    """Counts of token losses over ``HISTOGRAM_EDGES``, uint16, shape (32,).

    Bin i holds edges[i-1] <= loss < edges[i]; the first is open below, the last
    open above, and NaN falls into the last.
    """
    bins = np.searchsorted(col.HISTOGRAM_EDGES, token_loss, side="right")
    return np.bincount(bins, minlength=col.HISTOGRAM_EDGES.size + 1).astype(np.uint16)


def class_losses(token_loss: np.ndarray, batch: Batch) -> dict[str, float]:
    """Mean loss over rows with a regular and with an irregular verb.

    A class without a row in the batch has no entry.
    """
    # Row r predicts row_lengths[r] - 1 tokens: everything but its first. Plain
    # Python: for eight rows it is faster than numpy.
    predicted = [length - 1 for length in batch.row_lengths.tolist()]
    starts = [0, *accumulate(predicted[:-1])]
    sums = np.add.reduceat(token_loss, starts, dtype=np.float64).tolist()
    totals, counts = [0.0, 0.0], [0, 0]
    for regular, total, count in zip(
        batch.regular.tolist(), sums, predicted, strict=True
    ):
        totals[regular] += total
        counts[regular] += count
    names = (col.LOSS_IRREGULAR, col.LOSS_REGULAR)
    return {
        name: total / count
        for name, total, count in zip(names, totals, counts, strict=True)
        if count
    }
