"""Synthetic step records and run folders, shared by the tests of ``analysis``."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from analysis.journal import encode_block, encode_header
from analysis.parquet import write_parquet
from minigpt import records as r
from minigpt.records import RecordLayout, StepRecord

TENSORS = ("embed.weight", "lm_head.bias")
LAYOUT = RecordLayout(
    scalars=(r.TRAIN_LOSS, r.GRAD_NORM_PRECLIP, r.CLIP_COEF),
    tensors=tuple(prefix + name for prefix in r.PER_TENSOR for name in TENSORS),
    integers=(r.BATCH_FINGERPRINT, r.PARAM_HASH),
    occasional=(r.VAL_LOSS, r.SPECTRAL_NORM + "embed.weight"),
    arrays={r.TOKEN_LOSS: "float32", r.BATCH_TOKENS: "uint16"},
    constants={r.DTYPE: "float32"},
)
# Every kind of number that a careless conversion changes.
ODD_FLOATS = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, 5e-324, 1e300, 0.1]
FACTS = {
    "optimizer": {
        "kind": "adamw",
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
    },
    "clip": 1.0,
    "batch_size": 8,
    "precision": "fp32",
    "seed": 42,
    "data_seed": 42,
    "schedule": {"kind": "cosine", "warmup": 100, "peak": 3e-4},
    "vocabulary": {"file": "vocabulary.json", "sha256": "0" * 64},
}


def build_records(count, layout=LAYOUT, seed=0, odd=False, start=0):
    """``count`` records with random numbers; ``odd`` sprinkles in ODD_FLOATS."""
    rng = np.random.default_rng(seed)

    def floats(size, dtype):
        values = rng.standard_normal(size)
        if odd:
            where = rng.random(size) < 0.3
            values[where] = rng.choice(ODD_FLOATS, size)[where]
        with np.errstate(over="ignore", under="ignore"):
            return values.astype(dtype)

    def entries(dtype):
        size = int(rng.integers(0, 9))
        if dtype.startswith("float"):
            return floats(size, dtype)
        return rng.integers(0, np.iinfo(dtype).max, size, dtype, endpoint=True)

    return [
        StepRecord(
            step=step,
            scalars=floats(len(layout.scalars), np.float64),
            tensors=floats(len(layout.tensors), np.float32),
            integers=rng.integers(
                0, 2**64 - 1, len(layout.integers), np.uint64, endpoint=True
            ),
            arrays={name: entries(dtype) for name, dtype in layout.arrays.items()},
            occasional={
                name: float(floats(1, np.float64)[0])
                for name in layout.occasional
                if step % 3 == 0
            },
        )
        for step in range(start, start + count)
    ]


def journal_bytes(records, layout=LAYOUT, block=4):
    """A journal of these records, ``block`` of them a frame, as separate parts."""
    parts = [encode_header(layout)]
    for first in range(0, len(records), block):
        parts.append(encode_block(layout, records[first : first + block]))
    return parts


def build_run(
    folder: Path, records, layout=LAYOUT, closed=False, keep_journal=True, **manifest
):
    """A run folder; keyword arguments replace entries of its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / "journal.bin"
    journal.write_bytes(b"".join(journal_bytes(records, layout)))
    contents = {"name": "a-run", "status": "finished", "facts": FACTS}
    if closed:
        summary = write_parquet(journal, folder / "record.parquet")
        contents["record"] = {"sha256": summary.sha256, "rows": summary.rows}
    if closed and not keep_journal:
        journal.unlink()
    (folder / "manifest.json").write_text(json.dumps(contents | manifest))
    return folder


def bits(array):
    """The exact bytes of an array, so that NaN equals NaN and 0.0 is not -0.0."""
    array = np.ascontiguousarray(array)
    return array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest()


class Builder:
    """What the tests get: ``build.records``, ``build.run`` and so on."""

    layout = LAYOUT
    tensors = TENSORS
    facts = FACTS
    odd_floats = ODD_FLOATS
    records = staticmethod(build_records)
    journal = staticmethod(journal_bytes)
    run = staticmethod(build_run)
    bits = staticmethod(bits)


@pytest.fixture(scope="session")
def build():
    return Builder
