"""The loops that recording and tracking are measured against.

The bare loop is what anybody would write for this model and data: it shares the
model, the loader and the schedule with the product and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from minigpt.batches import load_dataset
from minigpt.loaders import LoaderConfig, make_loader
from minigpt.model import MiniGPT, ModelConfig
from minigpt.schedule import ScheduleConfig, declared_lr
from minigpt.watch import Watch

SEED = 42
AfterStep = Callable[[int, float], None]


def _parts():
    torch.set_num_threads(1)
    model = MiniGPT(ModelConfig(), SEED)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": 0.1},
            {"params": others, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        eps=1e-8,
        fused=True,
    )
    loader = make_loader(LoaderConfig(), load_dataset()[0], SEED)
    return model, optimizer, loader


def bare(steps: int, after_step: AfterStep | None = None) -> float:
    """Seconds of a conventional loop, with a call after each step if given."""
    return _run(*_parts(), steps, after_step)


def watched(steps: int) -> float:
    """Seconds of the same loop with the observer attached from outside."""
    model, optimizer, loader = _parts()
    watch = Watch(model, optimizer)
    rows = []
    seconds = _run(model, optimizer, loader, steps, lambda *_: rows.append(watch.row()))
    watch.close()
    assert len(rows) == steps
    return seconds


def _run(model, optimizer, loader, steps, after_step) -> float:
    schedule = ScheduleConfig()
    parameters = list(model.parameters())
    start = time.perf_counter()
    for step in range(steps):
        batch = loader.next()
        logits = model(batch.inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        for group in optimizer.param_groups:
            group["lr"] = declared_lr(schedule, step)
        optimizer.step()
        value = loss.item()
        if after_step is not None:
            after_step(step, value)
    return time.perf_counter() - start
