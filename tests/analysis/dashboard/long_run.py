"""A record of any length with every column, made of whole arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analysis.blocks import Columns
from analysis.facts import RunFacts
from analysis.history import RunHistory
from minigpt import records as col
from minigpt.records import RecordLayout
from tests.analysis.dashboard.runs import FACTS

BINS = len(col.HISTOGRAM_EDGES) + 1
ROWS, LENGTH = 2, 5  # rows of a batch and tokens of a row


def long_run(count: int, tensors: int, name: str = "long") -> RunHistory:
    """Healthy noise; the optimizer accounting holds, as every gradient is constant."""
    rng = np.random.default_rng(7)
    names = [f"blocks.{index}.weight" for index in range(tensors)]
    flat, measured = _scalars(count, rng), {}
    steps = np.arange(count)
    for index, tensor in enumerate(names):
        norm = np.float32(0.1 + index)
        decay = {"m": 0.9 ** (steps + 1), "v": 0.95 ** (steps + 1)}
        flat |= {
            col.GRAD_NORM + tensor: np.full(count, norm),
            col.TENSOR_PARAM_NORM + tensor: np.full(count, 10, np.float32),
            col.TENSOR_UPDATE_NORM + tensor: _noise(rng, count, 0.01),
            col.EXP_AVG_NORM + tensor: (norm * (1 - decay["m"])).astype(np.float32),
            col.EXP_AVG_SQ_SUM + tensor: norm**2 * (1 - decay["v"]),
        }
    for site in ("embed", "ln_final"):
        flat[col.ACT_MEAN_ABS + site] = _noise(rng, count, 0.2)
        flat[col.ACT_MAX_ABS + site] = _noise(rng, count, 3.0)
    often = steps % 100 == 0
    occasional = (col.VAL_LOSS, col.VAL_LOSS_CAUSAL, col.SPECTRAL_NORM + names[0])
    for column in (*occasional, col.LOSS_REGULAR, col.LOSS_IRREGULAR):
        mask = often if column in occasional else np.ones(count, bool)
        flat[column] = np.where(mask, 1.6 + 0.01 * rng.standard_normal(count), np.nan)
        measured[column] = mask
    arrays = _arrays(count, rng)
    layout = RecordLayout(
        scalars=tuple(key for key in flat if flat[key].dtype == np.float64),
        integers=(col.BATCH_FINGERPRINT,),
        occasional=tuple(measured),
        arrays={key: str(values.dtype) for key, (values, _) in arrays.items()},
    )
    columns = Columns(layout, steps, flat, measured, arrays)
    facts = RunFacts(**FACTS)
    return RunHistory(name, Path("no-such-folder"), steps, columns, facts, [])


def _noise(rng, count, level):
    return (level * np.exp(0.1 * rng.standard_normal(count))).astype(np.float32)


def _scalars(count, rng):
    ones = np.ones(count)
    return {
        col.TRAIN_LOSS: 1.5 + 0.1 * rng.standard_normal(count),
        col.LR: 1e-4 * ones,
        col.LR_DECLARED: 1e-4 * ones,
        col.GRAD_NORM_PRECLIP: _noise(rng, count, 2.0).astype(np.float64),
        col.GRAD_NORM_POSTCLIP: ones.copy(),
        col.CLIP_COEF: ones.copy(),
        col.TOKEN_LOSS_P99: 5 + 0.3 * rng.standard_normal(count),
        col.BATCH_INDEX: np.arange(count, dtype=np.float64),
        col.DUPLICATE_ROWS: np.zeros(count),
        col.RARE_TOKEN_MAX_COUNT: rng.integers(0, 4, count).astype(np.float64),
        col.RARE_TOKEN_ID: np.full(count, 7.0),
        col.RARE_TOKEN_SHARE: ones * 0.2,
        col.BATCH_FINGERPRINT: rng.integers(0, 2**63, count, np.uint64),
    }


def _arrays(count, rng):
    def even(values, each):
        return values, np.arange(0, each * count + 1, each)

    tokens, predicted = ROWS * LENGTH, ROWS * (LENGTH - 1)
    counts = np.zeros((count, BINS), np.uint16)
    counts[:, 2] = predicted
    return {
        col.BATCH_TOKENS: even(
            rng.integers(0, 500, tokens * count).astype(np.uint16), tokens
        ),
        col.BATCH_ROW_LENGTHS: even(np.full(ROWS * count, LENGTH, np.uint16), ROWS),
        col.TOKEN_LOSS: even(
            (9 * rng.random(predicted * count)).astype(np.float32), predicted
        ),
        col.TOKEN_LOSS_HISTOGRAM: even(counts.ravel(), BINS),
    }
