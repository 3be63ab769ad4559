"""Histories made of arrays, without a file, and pages read by other code than ours."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from analysis.blocks import Columns
from analysis.facts import RunFacts
from analysis.history import RunHistory
from minigpt import records as col
from minigpt.records import RecordLayout

FACTS = {
    "status": "finished",
    "optimizer": "adamw",
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip": 1.0,
}


def history(
    flat: dict[str, Any],
    arrays: dict[str, list[np.ndarray]] | None = None,
    occasional: dict[str, dict[int, float]] | None = None,
    steps: Any = None,
    folder: Path = Path("no-such-folder"),
    name: str = "a-run",
    constants: dict[str, str] | None = None,
    notes: list[str] | None = None,
    **facts: Any,
) -> RunHistory:
    """A run of these columns.

    Args:
        flat: column -> one number a step; uint64 arrays are integer columns.
        arrays: array column -> the entries of each step.
        occasional: column -> row -> value.
        steps: by default 0, 1, 2, ...
        folder: where a vocabulary may be.
        name: of the run.
        constants: text columns.
        notes: of the reading.
        facts: replace those of ``FACTS``.
    """
    flat = {key: np.asarray(values) for key, values in flat.items()}
    arrays, occasional = arrays or {}, occasional or {}
    lengths = [len(values) for values in (*flat.values(), *arrays.values())]
    count = lengths[0] if steps is None else len(steps)
    assert set(lengths) <= {count}
    integers = tuple(key for key, one in flat.items() if one.dtype == np.uint64)
    layout = RecordLayout(
        scalars=tuple(key for key in flat if key not in integers),
        integers=integers,
        occasional=tuple(occasional),
        arrays={key: str(_joined(rows).dtype) for key, rows in arrays.items()},
        constants=constants or {},
    )
    measured = {}
    for key, values in occasional.items():
        measured[key], flat[key] = np.zeros(count, bool), np.full(count, np.nan)
        for row, value in values.items():
            measured[key][row], flat[key][row] = True, value
    ragged = {
        key: (_joined(rows), np.cumsum([0, *map(len, rows)]))
        for key, rows in arrays.items()
    }
    number = np.arange(count) if steps is None else np.asarray(steps, np.int64)
    columns = Columns(layout, number, flat, measured, ragged)
    known = RunFacts(**(FACTS | facts))
    return RunHistory(name, folder, number, columns, known, notes or [])


def _joined(rows: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(one) for one in rows]) if rows else np.empty(0)


def full(
    count: int, tensors: int = 2, seed: int = 0, tokens: int = 4, **options: Any
) -> RunHistory:
    """A run with every column that a panel draws, healthy and random."""
    rng = np.random.default_rng(seed)
    names = [f"layer.{index}.weight" for index in range(tensors)]

    def noise(low: float = 1.0) -> np.ndarray:
        return (low + 0.05 * rng.standard_normal(count)).astype(np.float32)

    flat = {
        key: noise(2.0).astype(np.float64)
        for key in (
            *(col.TRAIN_LOSS, col.GRAD_NORM_PRECLIP, col.GRAD_NORM_POSTCLIP),
            *(col.TOKEN_LOSS_P99, col.RARE_TOKEN_SHARE),
        )
    }
    flat |= {key: np.full(count, 1e-3) for key in (col.LR, col.LR_DECLARED)}
    flat |= {key: np.zeros(count) for key in (col.DUPLICATE_ROWS, col.RARE_TOKEN_ID)}
    flat[col.CLIP_COEF] = np.ones(count)
    flat[col.BATCH_INDEX] = np.arange(count, dtype=float)
    flat[col.RARE_TOKEN_MAX_COUNT] = rng.integers(0, 4, count).astype(float)
    for name in names:
        flat |= {prefix + name: noise() for prefix in col.PER_TENSOR}
        flat[col.EXP_AVG_SQ_SUM + name] = _second_moment(flat[col.GRAD_NORM + name])
    for site in names:
        flat |= {col.ACT_MEAN_ABS + site: noise(), col.ACT_MAX_ABS + site: noise(9.0)}
    flat[col.BATCH_FINGERPRINT] = rng.integers(0, 2**64, count, np.uint64)
    often = {row: 1.5 for row in range(0, count, 7)}
    occasional = {
        key: often
        for key in (
            *(col.VAL_LOSS, col.VAL_LOSS_CAUSAL, col.LOSS_REGULAR, col.LOSS_IRREGULAR),
            *(col.SPECTRAL_NORM + name for name in names),
        )
    }
    halves = [tokens // 2, tokens - tokens // 2]
    arrays = {
        col.BATCH_TOKENS: list(rng.integers(0, 500, (count, tokens)).astype(np.uint16)),
        col.BATCH_ROW_LENGTHS: [np.array(halves, np.uint16)] * count,
        col.TOKEN_LOSS: list(rng.random((count, tokens - 2)).astype(np.float32) * 9),
        col.TOKEN_LOSS_HISTOGRAM: list(
            rng.integers(0, 20, (count, 32)).astype(np.uint32)
        ),
    }
    return history(flat, arrays, occasional, **options)


def _second_moment(norms: np.ndarray) -> np.ndarray:
    """What Adam makes of these gradient norms, step after step."""
    total, sums = 0.0, []
    for norm in norms.tolist():
        total = FACTS["beta2"] * total + (1 - FACTS["beta2"]) * norm**2
        sums.append(total)
    return np.array(sums)


def changed(run: RunHistory, without: tuple[str, ...] = (), **flat: Any) -> RunHistory:
    """The run without some columns, and with others replaced: ``train_loss=...``."""
    data = run.data
    for key, values in flat.items():
        name = getattr(col, key.upper())
        data.flat[name] = np.asarray(values, np.float64)
    layout = data.layout
    for name in without:
        for group in (data.flat, data.measured, data.arrays, layout.arrays):
            group.pop(name, None)
    return run


# -- reading a page --------------------------------------------------------------------


def page_json(text: str) -> dict[str, Any]:
    """The description that the page's script reads."""
    (found,) = re.findall(
        r'<script type="application/json" id="page">(.*?)</script>', text, re.DOTALL
    )
    return json.loads(found, parse_constant=_refuse)


def _refuse(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def page_arrays(text: str) -> list[list[float]]:
    """The numbers, decoded byte by byte and without numpy."""
    (numbers,) = re.findall(
        r'<script type="text/plain" id="numbers">(.*?)</script>', text, re.DOTALL
    )
    return decoded(page_json(text)["payload"], numbers)


def decoded(index: list[dict[str, Any]], encoded: str) -> list[list[float]]:
    """The arrays of a payload, by ``struct``."""
    data, at, arrays = gzip.decompress(base64.b64decode(encoded)), 0, []
    for entry in index:
        code = {"u1": "B", "u2": "H", "u4": "I", "f4": "f", "f8": "d"}[entry["type"]]
        size, length = struct.calcsize(f"<{code}"), entry["length"]
        part = data[at : at + size * length]
        at += size * length
        whole = [
            part[i + plane * length] for i in range(length) for plane in range(size)
        ]
        arrays.append(list(struct.unpack(f"<{length}{code}", bytes(whole))))
    assert at == len(data)
    return arrays


def charts_of(page: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every chart of the description by its key."""
    charts = [chart for panel in page["panels"] for chart in panel["charts"]]
    found = {chart["key"]: chart for chart in charts}
    assert len(found) == len(charts)
    return found


def visible(text: str) -> str:
    """The text of a page without tags, scripts and styles."""
    text = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", text))
