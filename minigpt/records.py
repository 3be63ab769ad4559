"""The step record: column names, layout and the row that training yields.

Everything a diagnosis will ever use is in these columns, at every step, exactly.
This module imports no torch, so that readers of a record do not need it either.
Names are ``area/lower_snake_case``; a trailing ``/`` marks a prefix that is
completed by the name of a parameter tensor, an activation site or a matrix.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

SCHEMA_VERSION = 1

# -- scalars, one float64 a step ---------------------------------------------------
TIME_WALL = "time/wall"  # seconds since the epoch when the step was complete
TRAIN_LOSS = "train/loss"  # nats per token, mean over non-pad targets, before update
LR = "optim/lr"  # the value this update used
LR_DECLARED = "optim/lr_declared"  # the schedule as configured
GRAD_NORM_PRECLIP = "optim/grad_norm_preclip"  # global L2
GRAD_NORM_POSTCLIP = "optim/grad_norm_postclip"  # global L2, measured, not derived
CLIP_COEF = "optim/clip_coef"  # the factor applied to every gradient
UPDATE_NORM = "optim/update_norm"  # L2 of the change of all parameters
PARAM_NORM = "optim/param_norm"  # L2 of all parameters after the update
STEP_COUNTER = "optim/step_counter"  # the optimizer's own count, after the update
TOKEN_LOSS_P99 = "token/loss_p99"  # nats, 99th percentile over the batch's tokens
BATCH_INDEX = "data/batch_index"  # batches served before this one
DUPLICATE_ROWS = "data/duplicate_rows"  # rows equal to another row of the batch
RARE_TOKEN_MAX_COUNT = "data/rare_token_max_count"  # of one rare token in the batch
RARE_TOKEN_ID = "data/rare_token_id"  # the token that reaches it, -1 if none
RARE_TOKEN_SHARE = "data/rare_token_share"  # of the batch's tokens, 0 to 1
LOSS_SCALE = "precision/loss_scale"  # 1.0 without loss scaling
STEP_SKIPPED = "precision/step_skipped"  # 1.0 if the update was skipped
NONFINITE_GRADS = "precision/nonfinite_grads"  # gradient elements NaN or inf
RELATIVE_UPDATE = "state/relative_update"  # update norm / parameter norm before it

# -- integers, one uint64 a step ---------------------------------------------------
BATCH_FINGERPRINT = "data/batch_fingerprint"  # hash of the batch's token ids
PARAM_HASH = "state/param_hash"  # fast hash of every parameter's bits

# -- per tensor and per site, one float32 each a step ------------------------------
GRAD_NORM = "grad_norm/"  # pre-clip; post-clip is this times clip_coef
TENSOR_PARAM_NORM = "param_norm/"
TENSOR_UPDATE_NORM = "update_norm/"
EXP_AVG_NORM = "exp_avg_norm/"
EXP_AVG_SQ_SUM = "exp_avg_sq_sum/"
ACT_MEAN_ABS = "act_mean_abs/"
ACT_MAX_ABS = "act_max_abs/"
PER_TENSOR = (
    GRAD_NORM,
    TENSOR_PARAM_NORM,
    TENSOR_UPDATE_NORM,
    EXP_AVG_NORM,
    EXP_AVG_SQ_SUM,
)

# -- occasional: null at the steps where they were not measured --------------------
LOSS_REGULAR = "token/loss_regular"  # nats per token over rows with a regular verb
LOSS_IRREGULAR = "token/loss_irregular"  # null if the batch has no such row
VAL_LOSS = "val/loss"  # nats per token, the mask as trained
VAL_LOSS_CAUSAL = "val/loss_causal"  # the causal mask restored
SPECTRAL_NORM = "spectral_norm/"  # largest singular value of a matrix
FUTURE_LEAK = "probe/future_leak"  # largest logit change at t by a token after t

# -- arrays, one of varying length a step ------------------------------------------
TOKEN_LOSS = "token/loss"  # float32 per predicted token, nats, row after row
TOKEN_LOSS_HISTOGRAM = "token/loss_histogram"  # counts over HISTOGRAM_EDGES
BATCH_TOKENS = "data/batch_tokens"  # token ids without padding, row after row
BATCH_ROW_LENGTHS = "data/batch_row_lengths"  # tokens of each row

# -- constants of a run ------------------------------------------------------------
DTYPE = "precision/dtype"

# 32 bins of half a nat; the last one is open to the right and also takes NaN.
HISTOGRAM_EDGES = np.arange(0.5, 16.0, 0.5, dtype=np.float32)


class InputError(ValueError):
    """The user's mistake: names the thing, what was expected and what arrived."""


@dataclass(frozen=True)
class RecordLayout:
    """Which columns the rows of one run have, in the order of their storage.

    Attributes:
        scalars: names of the float64 columns of ``StepRecord.scalars``.
        tensors: names of the float32 columns of ``StepRecord.tensors``.
        integers: names of the uint64 columns of ``StepRecord.integers``.
        occasional: names that may appear in ``StepRecord.occasional``.
        arrays: name -> numpy dtype of the entries of ``StepRecord.arrays``.
        constants: text columns with one value for the whole run.
    """

    scalars: tuple[str, ...]
    tensors: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    occasional: tuple[str, ...] = ()
    arrays: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and dicts, with the schema version."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RecordLayout:
        """The inverse of ``to_json``.

        Raises:
            InputError: the schema version is not the one this code writes.
        """
        version = data.get("schema_version")
        if version != SCHEMA_VERSION:
            raise InputError(
                f"record schema version: expected {SCHEMA_VERSION}, found {version!r}"
            )
        names = {key: tuple(data[key]) for key in ("scalars", "tensors", "integers")}
        return cls(
            **names,
            occasional=tuple(data["occasional"]),
            arrays=dict(data["arrays"]),
            constants=dict(data["constants"]),
        )


@dataclass(slots=True)
class StepRecord:
    """One training step, measured.

    Attributes:
        step: updates already applied to the weights that produced this row's loss.
        scalars: float64, shape (len(layout.scalars),).
        tensors: float32, shape (len(layout.tensors),).
        integers: uint64, shape (len(layout.integers),).
        arrays: column name -> one-dimensional array, for this step.
        occasional: column name -> value, only what was measured at this step.
    """

    step: int
    scalars: np.ndarray
    tensors: np.ndarray
    integers: np.ndarray
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    occasional: dict[str, float] = field(default_factory=dict)
