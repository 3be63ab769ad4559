import math

import numpy as np
import pytest
import torch

from minigpt.flat import FlatParameters
from minigpt.model import MiniGPT, ModelConfig
from minigpt.optimizer import AdamWConfig, FlatAdamW
from minigpt.records import InputError
from tests.minigpt.test_flat import Odd, gaps

CONFIG = AdamWConfig(beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3)


class Pair:
    """The same model twice, under FlatAdamW and under torch's own optimizer."""

    def __init__(self, make):
        self.model, self.reference = make(), make()
        self.flat = FlatParameters(self.model)
        self.optimizer = FlatAdamW(self.flat, CONFIG)
        self.parameters = dict(self.reference.named_parameters())
        every = self.parameters.values()
        big = [p for p in every if p.dim() >= 2]
        groups = [
            {"params": big, "weight_decay": CONFIG.weight_decay},
            {"params": [p for p in every if p.dim() < 2], "weight_decay": 0.0},
        ]
        betas = (CONFIG.beta1, CONFIG.beta2)
        self.torch = torch.optim.AdamW(groups, betas=betas, eps=CONFIG.eps, fused=True)
        self._generator = torch.Generator().manual_seed(1)

    def step(self, lr, size):
        mine = dict(self.model.named_parameters())
        for name, parameter in self.parameters.items():
            gradient = torch.randn(parameter.shape, generator=self._generator) * size
            parameter.grad = gradient
            mine[name].grad.copy_(gradient)
        for group in self.torch.param_groups:
            group["lr"] = lr
        self.optimizer.step(lr)
        self.torch.step()

    def compared(self):
        """(what, ours, torch's) for every tensor of weights and both moments."""
        flats = {"exp_avg": self.optimizer.exp_avg}
        flats["exp_avg_sq"] = self.optimizer.exp_avg_sq
        for name, view in self.flat.views(self.flat.values).items():
            yield name, view, self.parameters[name].detach()
        for key, buffer in flats.items():
            for name, view in self.flat.views(buffer).items():
                state = self.torch.state[self.parameters[name]]
                yield f"{key}/{name}", view, state[key]


def schedule():
    """20 steps of rates and gradient sizes that vary over orders of magnitude."""
    return [(1e-3 * (t + 1), 10.0 ** (t % 3 - 1)) for t in range(20)]


def test_bit_equal_to_fused_adamw_on_the_models_own_tensors():
    # All its sizes are multiples of 16: no kernel has a remainder to treat apart.
    pair = Pair(lambda: MiniGPT(ModelConfig(), seed=0))
    for lr, size in schedule():
        pair.step(lr, size)
        for what, ours, torchs in pair.compared():
            assert torch.equal(ours, torchs), what


def test_equal_up_to_rounding_on_awkward_sizes():
    # The remainder that fills no vector register goes through other instructions
    # (no fused multiply-add): up to one rounding of 2^-24 an operation and step.
    pair = Pair(Odd)
    for lr, size in schedule():
        pair.step(lr, size)
    for what, ours, torchs in pair.compared():
        torch.testing.assert_close(ours, torchs, rtol=2e-6, atol=1e-7, msg=what)
    assert not pair.flat.values[gaps(pair.flat)].any()
    assert not pair.optimizer.exp_avg_sq[gaps(pair.flat)].any()


def test_agrees_with_the_algorithm_written_out():
    model = Odd()
    flat = FlatParameters(model)
    optimizer = FlatAdamW(flat, CONFIG)
    generator = np.random.default_rng(0)
    named = dict(model.named_parameters())
    theta = {n: p.detach().double().numpy().copy() for n, p in named.items()}
    m = {name: np.zeros_like(value) for name, value in theta.items()}
    v = {name: np.zeros_like(value) for name, value in theta.items()}
    for t, (lr, size) in enumerate(schedule(), start=1):
        for name, parameter in named.items():
            g = (generator.standard_normal(parameter.shape) * size).astype(np.float32)
            parameter.grad.copy_(torch.from_numpy(g))
            g = g.astype(np.float64)
            decay = CONFIG.weight_decay if parameter.dim() >= 2 else 0.0
            m[name] = CONFIG.beta1 * m[name] + (1 - CONFIG.beta1) * g
            v[name] = CONFIG.beta2 * v[name] + (1 - CONFIG.beta2) * g**2
            m_hat = m[name] / (1 - CONFIG.beta1**t)
            v_hat = v[name] / (1 - CONFIG.beta2**t)
            step = m_hat / (np.sqrt(v_hat) + CONFIG.eps)
            theta[name] -= lr * (step + decay * theta[name])
        optimizer.step(lr)
    for name, parameter in named.items():
        # 20 float32 updates of a weight of size 1, each rounded by up to 2^-24.
        ours = parameter.detach().numpy()
        assert ours == pytest.approx(theta[name], rel=2e-6, abs=2e-6), name
    for name, view in flat.views(optimizer.exp_avg_sq).items():
        assert view.numpy() == pytest.approx(v[name], rel=5e-6), name


def test_gradients_of_zero_move_only_what_decays():
    model = MiniGPT(ModelConfig(), seed=0)
    flat = FlatParameters(model)
    before = {name: view.clone() for name, view in flat.views(flat.values).items()}
    FlatAdamW(flat, CONFIG).step(0.01)
    for name, view in flat.views(flat.values).items():
        kept = 1 - 0.01 * 0.3 if view.dim() == 2 else 1.0
        torch.testing.assert_close(view, before[name] * kept, rtol=1e-6, atol=0)


def test_step_counter_counts_and_governs_the_bias_correction():
    def updated(counter):
        flat = FlatParameters(Odd())
        optimizer = FlatAdamW(flat, AdamWConfig(weight_decay=0.0))
        assert optimizer.step_counter == 0.0
        optimizer.step_counter = counter
        flat.gradients.fill_(1.0)
        before = flat.values.clone()
        optimizer.step(0.1)
        assert optimizer.step_counter == counter + 1
        return (before - flat.values).numpy()

    # m_hat / sqrt(v_hat) of a gradient of 1 after t updates of which one was ours.
    for counter, t in ((0.0, 1), (9.0, 10)):
        ratio = 0.1 / (1 - 0.9**t) / math.sqrt(0.05 / (1 - 0.95**t))
        # The difference of weights of size 1 holds their rounding of 2^-24.
        assert updated(counter) == pytest.approx(0.1 * ratio, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "sgd"}, r"optimizer\.kind: expected 'adamw', got 'sgd'"),
        ({"beta1": 1.0}, r"optimizer\.beta1: expected 0 <= beta1 < 1, got 1\.0"),
        ({"beta2": -0.1}, r"optimizer\.beta2: .* got -0\.1"),
        ({"beta2": math.nan}, r"optimizer\.beta2: .* got nan"),
        ({"eps": 0.0}, r"optimizer\.eps: expected > 0, got 0\.0"),
        ({"weight_decay": -1.0}, r"optimizer\.weight_decay: expected >= 0, got -1\.0"),
    ],
)
def test_wrong_constants_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        AdamWConfig(**changes)
