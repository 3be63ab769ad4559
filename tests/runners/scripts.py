"""Small training loops of somebody else, and their runs in this process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

from loss_autopsy import init, load

CLIP = 1.0


def begin(root: Path, /, **arguments):
    """An offline run of this process."""
    return init(**{"root": root, "mode": "offline", "name": "r"} | arguments)


def manifest_of(run) -> dict:
    return json.loads((run.folder / "manifest.json").read_text())


def measured(history, key) -> dict[int, float]:
    """Step -> value where a key was logged."""
    there = history.measured(key)
    return dict(
        zip(
            history.steps[there].tolist(),
            history.scalar(key)[there].tolist(),
            strict=True,
        )
    )


class Loop:
    """A tiny regression: deterministic, so that two of them are bit-equal."""

    def __init__(self, seed=0, optimizer=torch.optim.AdamW, **options):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
        options = {"lr": 1e-2} | options
        self.optimizer = optimizer(self.model.parameters(), **options)
        self.generator = torch.Generator().manual_seed(seed + 1)

    def loss(self):
        x = torch.randn(6, 5, generator=self.generator)
        return ((self.model(x) - x.sum(1, keepdim=True)) ** 2).mean()

    def backward(self, passes=1):
        """Zero, forward and backward ``passes`` times, clip; the last loss."""
        self.optimizer.zero_grad()
        for _ in range(passes):
            loss = self.loss()
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        return loss.item()


def record_of(run):
    return load(run.folder)


def bits(values) -> bytes:
    return np.ascontiguousarray(values).tobytes()
