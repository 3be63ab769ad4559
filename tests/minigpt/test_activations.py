import numpy as np
import pytest
import torch
from torch import nn

from minigpt.activations import MAX_SITES, ActivationMeter, as_array, default_sites
from minigpt.model import MiniGPT, ModelConfig
from minigpt.records import InputError


def hooks_of(model):
    return sum(len(module._forward_hooks) for module in model.modules())


class Encoder(nn.Module):
    """A named list of layers with norms inside and one outside."""

    def __init__(self, layers):
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.stack = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(layers)
        )
        self.last_norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 9)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.stack:
            x = layer(x)
        return self.out(self.last_norm(x))


class Bare(nn.Module):
    """No submodules at all."""

    def forward(self, x):
        return -3 * x


def test_the_mini_gpt_is_watched_at_embedding_blocks_and_final_norm():
    sites = default_sites(MiniGPT(ModelConfig(), 0))
    assert sites == ["embed", "blocks.0", "blocks.1", "ln_final"]


def test_members_of_the_outermost_list_and_not_what_is_inside_them():
    assert default_sites(Encoder(2)) == ["words", "stack.0", "stack.1", "last_norm"]


def test_models_without_landmarks():
    plain = nn.Module()
    plain.one, plain.two = nn.Linear(2, 2), nn.Linear(2, 2)
    assert default_sites(plain) == ["one", "two"]
    assert default_sites(Bare()) == [""]


def test_many_layers_are_thinned_evenly_with_both_ends():
    sites = default_sites(Encoder(100))
    assert len(sites) == len(set(sites)) == MAX_SITES
    assert (sites[0], sites[-1]) == ("words", "last_norm")
    layers = [int(site.split(".")[1]) for site in sites[1:-1]]
    assert set(np.diff(layers)) <= {3, 4}


@torch.no_grad()
def test_mean_and_largest_absolute_output_of_every_site():
    model = Encoder(2)
    meter = ActivationMeter(model)
    outputs = {}
    for site in meter.sites:

        def keep(module, inputs, output, site=site):
            outputs[site] = output.double().abs()

        model.get_submodule(site).register_forward_hook(keep)
    model(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    means = [outputs[site].mean().item() for site in meter.sites]
    maxima = [outputs[site].max().item() for site in meter.sites]
    assert meter.values.tolist() == pytest.approx([*means, *maxima], rel=1e-6)


@torch.no_grad()
def test_the_last_forward_pass_counts_and_a_disabled_meter_does_not_look():
    model = Bare()
    meter = ActivationMeter(model)
    assert np.isnan(meter.values).all()
    model(torch.tensor([1.0, -3.0]))
    model(torch.tensor([2.0, -4.0]))
    assert meter.values.tolist() == [9.0, 12.0]
    meter.enabled = False
    model(torch.tensor([100.0]))
    assert meter.values.tolist() == [9.0, 12.0]


@torch.no_grad()
@pytest.mark.parametrize(
    ("output", "mean", "largest"),
    [([np.nan, 1.0], np.nan, np.nan), ([-np.inf, 1.0], np.inf, np.inf)],
)
def test_values_that_are_not_finite_are_measured_as_such(output, mean, largest):
    model = nn.Identity()
    meter = ActivationMeter(model)
    model(torch.tensor(output))
    assert np.array_equal(meter.values, [mean, largest], equal_nan=True)


@torch.no_grad()
def test_huge_outputs_are_measured_without_a_warning():
    model = nn.Identity()
    meter = ActivationMeter(model)
    model(torch.full((10,), 3e38))
    assert meter.values[1] == np.float32(3e38)
    assert meter.values[0] > 1e38


def test_half_precision_and_strided_outputs():
    tensor = torch.arange(6, dtype=torch.bfloat16).view(2, 3).T
    assert as_array(tensor).tolist() == [0, 3, 1, 4, 2, 5]
    plain = torch.zeros(4)
    as_array(plain)[0] = 1.0
    assert plain[0] == 1.0  # a view, nothing is copied


def test_outputs_that_are_no_tensor_are_passed_over():
    model = nn.Identity()
    meter = ActivationMeter(model)
    model({"logits": torch.ones(2)})
    model(torch.ones(0))
    assert np.isnan(meter.values).all()


def test_close_takes_every_hook_off():
    model = Encoder(2)
    meter = ActivationMeter(model)
    assert hooks_of(model) == 4
    meter.close()
    assert hooks_of(model) == 0


def test_an_unknown_site_is_refused_by_name():
    with pytest.raises(InputError, match=r"site: .* got 'blocks\.7'"):
        ActivationMeter(Encoder(1), ["words", "blocks.7"])
