"""What a position of the model may see, and the whole model against plain loops."""

import math

import numpy as np
import pytest
import torch

from minigpt.batches import collate, load_dataset
from minigpt.model import MiniGPT, ModelConfig, token_losses

SMALL = ModelConfig(d_model=8, n_layers=2, n_heads=2, d_ff=12, vocab_size=30)


@pytest.fixture
def model():
    """A small model whose every parameter is far from its start."""
    model = MiniGPT(SMALL, seed=0)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 30, (3, 9), generator=generator)


def uncover(model, blocks=slice(None)):
    for block in model.blocks[blocks]:
        block.attn.causal = False


# -- plain loops -------------------------------------------------------------------


def normed(x, layer):
    weight, bias = (p.detach().double().numpy() for p in (layer.weight, layer.bias))
    return np.array(
        [(v - v.mean()) / math.sqrt(v.var() + layer.eps) * weight + bias for v in x]
    )


def turned(vector, position, width):
    half = width // 2
    pairs = vector[:half] + 1j * vector[half:]
    angles = position * 10000.0 ** (-2 * np.arange(half) / width)
    pairs = pairs * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag])


def attended(x, attention, causal):
    """Head by head, position by position."""
    q, k, v, o = (
        getattr(attention, f"w_{name}").weight.detach().double().numpy()
        for name in "qkvo"
    )
    width = x.shape[1] // attention.n_heads
    heads = np.zeros(x.shape)
    for head in range(attention.n_heads):
        part = slice(head * width, (head + 1) * width)
        for t in range(len(x)):
            seen = range(t + 1) if causal else range(len(x))
            query = turned((q @ x[t])[part], t, width)
            keys = [turned((k @ x[s])[part], s, width) for s in seen]
            scores = np.exp([query @ key / math.sqrt(width) for key in keys])
            shares = scores / scores.sum()
            heads[t, part] = sum(
                share * (v @ x[s])[part] for share, s in zip(shares, seen, strict=True)
            )
    return heads @ o.T


def fed(x, ffn):
    w_1, b_1, w_2, b_2 = (p.detach().double().numpy() for p in ffn.parameters())
    inner = x @ w_1.T + b_1
    gelu = [[0.5 * a * (1 + math.erf(a / math.sqrt(2))) for a in row] for row in inner]
    return np.array(gelu) @ w_2.T + b_2


def slow_logits(model, row, causal=True):
    """The definition of the model, one row at a time, in float64."""
    table = model.embed.weight.detach().double().numpy()
    x = table[row]
    for block in model.blocks:
        x = x + attended(normed(x, block.ln_1), block.attn, causal)
        x = x + fed(normed(x, block.ln_2), block.ffn)
    bias = model.lm_head.bias.detach().double().numpy()
    return normed(x, model.ln_final) @ table.T + bias


@pytest.mark.parametrize("causal", [True, False])
def test_forward_agrees_with_plain_loops(model, tokens, causal):
    if not causal:
        uncover(model)
    slow = np.array([slow_logits(model, row, causal) for row in tokens.tolist()])
    fast = model(tokens).detach().numpy()
    # Logits of size 5 in float32 after two blocks: some ten roundings of 2^-24.
    assert np.abs(slow).max() > 1
    assert fast == pytest.approx(slow, abs=2e-5)


# -- what a position sees ----------------------------------------------------------


def largest_change_before(model, tokens, position):
    """Of any logit before a position when the token there changes."""
    changed = tokens.clone()
    changed[:, position] = (changed[:, position] + 1) % 30
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs()
    assert difference[:, position:].amax(dim=(1, 2)).min() > 1e-3
    return difference[:, :position].max().item()


@pytest.mark.parametrize("position", [1, 4, 8])
def test_no_position_sees_the_future_at_all(model, tokens, position):
    assert model.causal
    assert largest_change_before(model, tokens, position) == 0.0


@pytest.mark.parametrize("blocks", [slice(0, 1), slice(1, 2), slice(0, 2)])
def test_a_removed_mask_leaks(model, tokens, blocks):
    uncover(model, blocks)
    assert not model.causal
    assert largest_change_before(model, tokens, 8) > 1e-4


def test_a_position_sees_every_earlier_one(model, tokens):
    with torch.no_grad():
        before = model(tokens)[:, 8]
        for position in range(8):
            changed = tokens.clone()
            changed[:, position] = (changed[:, position] + 1) % 30
            assert (model(changed)[:, 8] - before).abs().amax(dim=1).min() > 1e-5


def test_rows_do_not_see_each_other(model, tokens):
    changed = tokens.clone()
    changed[1] = (changed[1] + 1) % 30
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs().amax(dim=(1, 2))
    assert difference[[0, 2]].max() == 0.0
    assert difference[1] > 0


# -- padding -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def padded():
    """The default model and a batch whose rows differ in length."""
    train, _ = load_dataset()
    rows = sorted(train.rows, key=len)
    rows = rows[:4] + rows[-4:]
    batch = collate(0, rows, np.zeros(8, dtype=bool))
    assert (batch.targets < 0).sum() > 8
    return MiniGPT(ModelConfig(init_std=0.1), seed=1), batch


@torch.no_grad()
def test_what_stands_in_the_padding_changes_no_loss(padded):
    model, batch = padded
    inputs = batch.inputs.clone()
    inputs[batch.targets < 0] = 99
    before = token_losses(model(batch.inputs), batch.targets)[0]
    assert torch.equal(token_losses(model(inputs), batch.targets)[0], before)


@torch.no_grad()
def test_a_padded_row_has_the_losses_it_has_alone(padded):
    model, batch = padded
    together, mean = token_losses(model(batch.inputs), batch.targets)
    together = together.view(batch.targets.shape)
    total = count = 0
    for place, row in enumerate(batch.rows):
        alone = collate(0, [row], np.zeros(1, dtype=bool))
        losses, _ = token_losses(model(alone.inputs), alone.targets)
        real = len(row) - 1
        # Other shapes may take another kernel: the last bits are not the same.
        torch.testing.assert_close(together[place, :real], losses, rtol=0, atol=1e-5)
        assert not together[place, real:].any()
        total, count = total + losses.double().sum().item(), count + real
    assert mean.item() == pytest.approx(total / count, rel=1e-6)
