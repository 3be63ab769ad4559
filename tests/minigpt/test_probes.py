import math

import numpy as np
import pytest
import torch
from torch import nn

from minigpt.batches import collate, load_dataset
from minigpt.model import MiniGPT, ModelConfig
from minigpt.probes import (
    EXACT_UP_TO,
    future_leak,
    power_iteration,
    spectral_norms,
    validation_loss,
)

CONFIG = ModelConfig(init_std=0.2)  # lively enough for the mask to matter


def matrix(rows, columns, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=dtype)


def svd_norm(tensor):
    return np.linalg.svd(tensor.double().numpy(), compute_uv=False)[0]


# -- spectral norms ----------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e-15, 1e15])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (7, 3), (64, 64), (512, 64)])
def test_spectral_norm_agrees_with_the_svd(shape, scale):
    tensor = (matrix(*shape) * scale).float()
    found = spectral_norms({"w": tensor})["w"]
    # The square root of an eigenvalue of float64: the error of sigma^2 halves.
    assert found == pytest.approx(svd_norm(tensor), rel=1e-12)


def test_every_matrix_has_its_own_norm():
    tensors = {"a": matrix(4, 4, 1), "b": matrix(9, 4, 2)}
    expected = {name: svd_norm(tensor) for name, tensor in tensors.items()}
    assert spectral_norms(tensors) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", [(4, 4), (EXACT_UP_TO + 1, EXACT_UP_TO + 1)])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_matrix_that_is_not_finite_has_no_norm(shape, poison):
    tensor = torch.ones(shape)
    tensor[2, 1] = poison
    assert math.isnan(spectral_norms({"w": tensor})["w"])


def with_spectrum(values, rows, columns):
    """A matrix with these singular values and random singular vectors."""
    count = len(values)
    left, _ = np.linalg.qr(matrix(rows, count, 1).numpy())
    right, _ = np.linalg.qr(matrix(columns, count, 2).numpy())
    return torch.from_numpy(left @ np.diag(values) @ right.T)


@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.97])
def test_power_iteration_agrees_with_the_svd(ratio):
    tensor = with_spectrum([3.0, 3.0 * ratio, 1.0, 0.1], 40, 30)
    found = power_iteration(tensor, iterations=100)
    # sigma_1 from below, with the error of the docstring: 0.97^400 = 5e-6. The start
    # may hold more of the second direction than of the first; a factor of 10 is ample.
    error = 1 - found / svd_norm(tensor)
    assert -1e-14 < error < 10 * ratio**400 + 1e-14


def test_a_large_matrix_is_iterated_to_a_percent_at_worst():
    # Random matrices are the hardest: their leading singular values lie together.
    side = EXACT_UP_TO + 8
    tensor = matrix(side, side, dtype=torch.float32)
    error = 1 - spectral_norms({"w": tensor})["w"] / svd_norm(tensor)
    assert 0 < error < 0.01  # above 0: not the exact method


def test_power_iteration_of_nothing_is_nothing():
    assert power_iteration(torch.zeros(5, 4, dtype=torch.float64)) == 0.0


def test_power_iteration_draws_from_no_global_state():
    tensor = matrix(20, 20)
    torch.manual_seed(1)
    first, state = power_iteration(tensor), torch.get_rng_state()
    torch.manual_seed(2)
    assert power_iteration(tensor) == first
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


# -- validation --------------------------------------------------------------------


@pytest.fixture(scope="module")
def held_out():
    _, validation = load_dataset()
    return collate(0, validation.rows, validation.regular)


def uncover(model, blocks=slice(None)):
    for block in model.blocks[blocks]:
        block.attn.causal = False


@torch.no_grad()
def slow_loss(model, rows):
    """Row by row, token by token."""
    losses = []
    for row in rows:
        ids = torch.from_numpy(row.astype(np.int64))
        scores = torch.log_softmax(model(ids[None, :-1])[0].double(), dim=-1)
        losses += [-scores[t, ids[t + 1]].item() for t in range(len(ids) - 1)]
    return math.fsum(losses) / len(losses)


def test_validation_loss_agrees_with_a_loop(held_out):
    model = MiniGPT(CONFIG, seed=0)
    as_trained, causal = validation_loss(model, held_out)
    assert as_trained == causal
    assert len(held_out.rows) == 60
    # A mean of 500 float32 losses of size 10.
    assert as_trained == pytest.approx(slow_loss(model, held_out.rows), rel=1e-6)


@pytest.mark.parametrize("blocks", [slice(0, 1), slice(1, 2), slice(0, 2)])
def test_the_second_loss_is_that_of_a_causal_model(held_out, blocks):
    model, causal = MiniGPT(CONFIG, seed=0), MiniGPT(CONFIG, seed=0)
    uncover(model, blocks)
    as_trained, restored = validation_loss(model, held_out)
    assert restored == validation_loss(causal, held_out)[0]
    assert abs(as_trained - restored) > 1e-3


def test_measuring_leaves_the_model_as_it_was(held_out):
    model = MiniGPT(CONFIG, seed=0)
    uncover(model, slice(1, 2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    validation_loss(model, held_out)
    future_leak(model, held_out.inputs)
    assert [block.attn.causal for block in model.blocks] == [True, False]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
    assert model.training


def test_masks_come_back_after_an_error_too(held_out):
    model = MiniGPT(CONFIG, seed=0)
    uncover(model)

    def fail(module, inputs):
        if module.attn.causal:
            raise RuntimeError("in the second pass")

    model.blocks[0].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="second pass"):
        validation_loss(model, held_out)
    assert not any(block.attn.causal for block in model.blocks)


# -- leak --------------------------------------------------------------------------


@pytest.mark.parametrize("last", [0, 1, 5])
def test_a_causal_model_leaks_exactly_nothing(last):
    tokens = torch.tensor([[3, 4, 5, last], [6, 7, 8, last]])
    model = MiniGPT(CONFIG, seed=0)
    assert future_leak(model, tokens) == 0.0
    uncover(model, slice(1, 2))
    assert future_leak(model, tokens) > 1e-3


class Oracle(nn.Module):
    """Shows the last token, times a weight, at one earlier place; nothing elsewhere."""

    def __init__(self, place, weight):
        super().__init__()
        self.place, self.weight = place, weight

    def forward(self, tokens):
        logits = torch.zeros(*tokens.shape, 9)
        logits[:, self.place, 4] = self.weight * tokens[:, -1]
        return logits


@pytest.mark.parametrize("place", [0, 2])
def test_the_leak_is_the_largest_change_of_a_logit(place):
    tokens = torch.tensor([[1, 2, 3, 7], [1, 2, 3, 0]])
    # The last tokens become 0 and 1: changes of 7 and 1 times the weight.
    assert future_leak(Oracle(place, -0.5), tokens) == 3.5
    assert future_leak(Oracle(3, -0.5), tokens) == 0.0  # the last place may see it
    assert math.isnan(future_leak(Oracle(place, math.nan), tokens))
    assert tokens[:, -1].tolist() == [7, 0]
