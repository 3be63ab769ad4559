"""Foreign modules and optimizers: what the hooks measure against slow references."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from minigpt import records as col
from minigpt.watch import Watch

CLIP = 0.1
CLOSE = {"rel": 1e-6, "abs": 0}  # float32 sums over lanes, float32 storage


class Mlp(nn.Module):
    """Three matrices, one of them frozen, and a part that no forward pass uses."""

    def __init__(self):
        super().__init__()
        self.entry = nn.Linear(5, 16)
        self.hidden = nn.Linear(16, 16)
        self.exit = nn.Linear(16, 3)
        self.unused = nn.Linear(2, 2)
        self.hidden.requires_grad_(False)

    def forward(self, x):
        return self.exit(torch.tanh(self.hidden(torch.tanh(self.entry(x)))))


class TransformerLm(nn.Module):
    """A small language model out of torch's own parts; returns a dict."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 11)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.encoder(self.words(tokens), mask=mask, is_causal=True)
        return {"ids": tokens, "logits": self.head(hidden)}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))


def mlp_loss(model, generator):
    squares = model(torch.randn(8, 5, generator=generator)) ** 2
    return squares.mean() + model.exit.weight.sum()


def lm_loss(model, generator):
    tokens = torch.randint(0, 11, (4, 7), generator=generator)
    logits = model(tokens[:, :-1])["logits"]
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


SETUPS = {
    "mlp-sgd": (Mlp, sgd, mlp_loss),
    "mlp-adamw": (Mlp, adamw, mlp_loss),
    "lm-adamw": (TransformerLm, adamw, lm_loss),
}
ALL = pytest.mark.parametrize("setup", SETUPS)


def build(setup):
    torch.manual_seed(0)
    make, optimizer, loss = SETUPS[setup]
    model = make()
    return model, optimizer(model), loss, torch.Generator().manual_seed(1)


def norms(tensors):
    return {n: 0.0 if t is None else t.double().norm().item() for n, t in tensors}


def total(found):
    return math.sqrt(sum(value**2 for value in found.values()))


def trainable(model):
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


def gradients(model):
    return [(n, p.grad) for n, p in trainable(model)]


def step(model, optimizer, loss, generator, backwards=1):
    """One step of a user's loop; returns what a slow observer sees on the way."""
    seen = SimpleNamespace()
    optimizer.zero_grad()
    for _ in range(backwards):
        loss(model, generator).backward()
    seen.pre = norms(gradients(model))
    clip_grad_norm_(model.parameters(), CLIP)
    seen.post = norms(gradients(model))
    before = {n: p.detach().clone() for n, p in trainable(model)}
    seen.before = norms(before.items())
    optimizer.step()
    seen.update = norms((n, p.detach() - before[n]) for n, p in trainable(model))
    seen.after = norms((n, p.detach()) for n, p in trainable(model))
    return seen


def columns(watch, prefix):
    row = dict(zip(watch.columns, watch.row().tolist(), strict=True))
    return {c.removeprefix(prefix): v for c, v in row.items() if c.startswith(prefix)}


@ALL
@pytest.mark.parametrize("backwards", [1, 2])
def test_norms_of_every_step(setup, backwards):
    model, optimizer, loss, generator = build(setup)
    watch = Watch(model, optimizer)
    for _ in range(4):
        seen = step(model, optimizer, loss, generator, backwards)
        assert watch.norm_preclip == pytest.approx(total(seen.pre), **CLOSE)
        assert watch.norm_postclip == pytest.approx(total(seen.post), **CLOSE)
        assert total(seen.pre) > 2 * CLIP > total(seen.post)
        for prefix, expected in (
            (col.GRAD_NORM, seen.pre),
            (col.TENSOR_PARAM_NORM, seen.after),
            (col.TENSOR_UPDATE_NORM, seen.update),
        ):
            assert columns(watch, prefix) == pytest.approx(expected, **CLOSE)
        update = watch.update
        assert update.update_norm == pytest.approx(total(seen.update), **CLOSE)
        assert update.param_norm == pytest.approx(total(seen.after), **CLOSE)
        relative = total(seen.update) / total(seen.before)
        assert update.relative_update == pytest.approx(relative, **CLOSE)


def test_moments_of_adam():
    model, optimizer, loss, generator = build("lm-adamw")
    watch = Watch(model, optimizer)
    for _ in range(3):
        step(model, optimizer, loss, generator)
    state = {name: optimizer.state[p] for name, p in trainable(model)}
    means = norms((name, s["exp_avg"]) for name, s in state.items())
    assert columns(watch, col.EXP_AVG_NORM) == pytest.approx(means, **CLOSE)
    sums = {name: s["exp_avg_sq"].double().sum().item() for name, s in state.items()}
    assert columns(watch, col.EXP_AVG_SQ_SUM) == pytest.approx(sums, **CLOSE)
    assert watch.step_counter == 3.0


def test_an_optimizer_without_moments_has_none():
    model, optimizer, loss, generator = build("mlp-sgd")
    watch = Watch(model, optimizer)
    step(model, optimizer, loss, generator)
    for prefix in (col.EXP_AVG_NORM, col.EXP_AVG_SQ_SUM):
        assert np.isnan(list(columns(watch, prefix).values())).all()
    assert math.isnan(watch.step_counter)


def test_frozen_parameters_are_left_out_and_unused_ones_count_zero():
    model, optimizer, loss, generator = build("mlp-adamw")
    watch = Watch(model, optimizer)
    step(model, optimizer, loss, generator)
    found = columns(watch, col.GRAD_NORM)
    parts = ("entry", "exit", "unused")
    assert list(found) == [f"{p}.{kind}" for p in parts for kind in ("weight", "bias")]
    for name in ("unused.weight", "unused.bias"):
        assert found[name] == 0.0
        assert columns(watch, col.TENSOR_UPDATE_NORM)[name] == 0.0
        assert math.isnan(columns(watch, col.EXP_AVG_NORM)[name])
        assert columns(watch, col.TENSOR_PARAM_NORM)[name] > 0


@ALL
def test_watching_changes_no_bit_of_the_training(setup):
    weights = []
    for watched in (True, False):
        model, optimizer, loss, generator = build(setup)
        if watched:
            watch = Watch(model, optimizer)
        for _ in range(5):
            step(model, optimizer, loss, generator)
        weights.append(model.state_dict())
        if watched:
            assert watch.update is not None
    assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0])
