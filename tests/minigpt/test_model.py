import math

import pytest
import torch
from torch.func import functional_call

from minigpt.batches import collate, load_dataset
from minigpt.model import (
    MiniGPT,
    ModelConfig,
    parameter_count,
    token_losses,
)
from minigpt.records import InputError

SMALL = ModelConfig(d_model=8, n_layers=3, n_heads=2, d_ff=12, vocab_size=30)
CONFIGS = pytest.mark.parametrize(
    "config",
    [
        ModelConfig(),
        SMALL,
        ModelConfig(d_model=6, n_layers=1, n_heads=1, d_ff=5, vocab_size=7),
    ],
)


@pytest.fixture(scope="module")
def model():
    return MiniGPT(ModelConfig(), seed=3)


def lively(config):
    """A model whose every parameter, biases and norms too, is far from its start."""
    model = MiniGPT(config, seed=0)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def token_ids(rows, length, vocabulary, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (rows, length), generator=generator)


# -- size and start ----------------------------------------------------------------


@CONFIGS
def test_parameter_count_is_the_closed_form(config):
    parameters = MiniGPT(config, seed=0).parameters()
    assert sum(p.numel() for p in parameters) == parameter_count(config)


def test_the_default_model_has_132864_parameters():
    assert parameter_count(ModelConfig()) == 132_864


def test_matrices_start_normal_and_the_rest_at_its_neutral_value(model):
    for name, parameter in model.named_parameters():
        values = parameter.detach().double()
        if parameter.dim() < 2:
            neutral = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
            assert (values == neutral).all(), name
            continue
        # Five standard errors of mean, standard deviation and of the share beyond
        # one sigma (0.3173 for a normal distribution): 40 such checks all hold by
        # chance but for 2 in 100,000 seeds, and the seed is fixed.
        n = values.numel()
        assert abs(values.mean()) < 5 * 0.02 / math.sqrt(n), name
        assert abs(values.std() - 0.02) < 5 * 0.02 / math.sqrt(2 * n), name
        beyond = (values.abs() > 0.02).double().mean()
        assert abs(beyond - 0.3173) < 5 * math.sqrt(0.3173 * 0.6827 / n), name


def test_init_std_is_the_configs():
    wide = MiniGPT(ModelConfig(init_std=0.2), seed=3)
    thin = MiniGPT(ModelConfig(init_std=0.02), seed=3)
    ratio = wide.embed.weight / thin.embed.weight
    assert ratio.min() > 9.999
    assert ratio.max() < 10.001


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = MiniGPT(SMALL, seed=7).state_dict()
    torch.manual_seed(2)
    again = MiniGPT(SMALL, seed=7).state_dict()
    other = MiniGPT(SMALL, seed=8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    matrices = [name for name in first if first[name].dim() == 2]
    assert not any(torch.equal(first[name], other[name]) for name in matrices)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layers": 0}, r"model\.n_layers: expected at least 1, got 0"),
        ({"d_model": 12}, r"multiple of 2 x n_heads \(8\), got 12"),
        ({"init_std": 0.0}, r"init_std > 0 .* got 0\.0"),
        ({"rope_base": float("nan")}, r"rope_base > 1, got .* nan"),
    ],
)
def test_wrong_sizes_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ModelConfig(**changes)


# -- the head, the loss ------------------------------------------------------------


def test_only_the_bias_of_the_head_is_its_own():
    model = lively(SMALL)
    names = dict(model.named_parameters())
    assert [name for name in names if name.startswith("lm_head")] == ["lm_head.bias"]
    hidden = []
    model.ln_final.register_forward_hook(lambda m, i, output: hidden.append(output))
    logits = model(token_ids(2, 5, 30))
    expected = hidden[0] @ model.embed.weight.T + model.lm_head.bias
    torch.testing.assert_close(logits, expected)


def test_the_embedding_learns_from_both_ends():
    model, tokens = lively(SMALL), token_ids(2, 6, 30)
    targets = token_ids(2, 6, 30, seed=1)
    token_losses(model(tokens), targets)[1].backward()
    both = model.embed.weight.grad

    ends = [model.embed.weight.detach().clone().requires_grad_() for _ in range(2)]
    entry, exit_ = ends
    model.lm_head.register_forward_pre_hook(lambda m, inputs: (inputs[0], exit_))
    logits = functional_call(model, {"embed.weight": entry}, tokens)
    token_losses(logits, targets)[1].backward()
    assert min(entry.grad.abs().max(), exit_.grad.abs().max()) > 1e-3
    torch.testing.assert_close(both, entry.grad + exit_.grad)


def test_token_losses_agree_with_a_loop():
    logits = torch.randn(3, 4, 11, generator=torch.Generator().manual_seed(0)) * 4
    targets = token_ids(3, 4, 11)
    targets[0, 2:] = -100
    targets[2, 3] = -100
    expected = []
    for row, wanted in zip(logits.double().tolist(), targets.tolist(), strict=True):
        for scores, target in zip(row, wanted, strict=True):
            total = math.log(sum(math.exp(score) for score in scores))
            expected.append(total - scores[target] if target >= 0 else 0.0)
    losses, mean = token_losses(logits, targets)
    assert losses.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert mean.item() == pytest.approx(sum(expected) / 9, rel=1e-6)


def test_an_untrained_model_knows_nothing(model):
    train, _ = load_dataset()
    batch = collate(0, train.rows[:8], train.regular[:8])
    loss = token_losses(model(batch.inputs), batch.targets)[1].item()
    # Logits of standard deviation 0.16 (|h| = 8, 0.02 an entry) about a mean of 0.
    assert abs(loss - math.log(512)) < 0.15
