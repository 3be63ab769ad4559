import numpy as np
import pytest
import torch
from torch import nn

from minigpt.activations import MAX_SITES, ActivationMeter, default_sites
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


@torch.no_grad()
def test_half_precision_and_strided_outputs():
    model = nn.Identity()
    meter = ActivationMeter(model)
    for _ in range(2):
        model(torch.tensor([[60000.0, -60000.0], [60000.0, 3.0]]).half().T)
        assert meter.values.tolist() == [45000.75, 60000.0]


def test_outputs_that_are_no_tensor_are_passed_over():
    model = nn.Identity()
    meter = ActivationMeter(model)
    model({"logits": torch.ones(2)})
    model(torch.ones(0))
    assert np.isnan(meter.values).all()


def test_close_takes_every_hook_off():
    model = Encoder(2)
    meter = ActivationMeter(model)
    assert hooks_of(model) == 5  # four sites, and the end of the pass
    meter.close()
    assert hooks_of(model) == 0


def test_an_unknown_site_is_refused_by_name():
    with pytest.raises(InputError, match=r"site: .* got 'blocks\.7'"):
        ActivationMeter(Encoder(1), ["words", "blocks.7"])


class Overwrites(nn.Module):
    """Changes the output of a site in place, at some of its passes."""

    def __init__(self):
        super().__init__()
        self.site = nn.Identity()
        self.in_place = False

    def forward(self, x):
        y = self.site(x * 1.0)
        return y.mul_(-10) if self.in_place else y * -10


@torch.no_grad()
def test_an_output_changed_in_place_is_measured_before_the_change():
    model = Overwrites()
    model.in_place = True
    meter = ActivationMeter(model, ["site"])
    for largest in (3.0, 4.0, 5.0):
        model(torch.tensor([1.0, -largest]))
        assert meter.values.tolist() == [(1 + largest) / 2, largest]


@torch.no_grad()
def test_a_change_in_place_that_comes_late_costs_one_value_and_lies_about_none():
    model = Overwrites()
    meter = ActivationMeter(model, ["site"])
    seen = []
    for in_place in (False, False, True, True, False, False):
        model.in_place = in_place
        model(torch.tensor([1.0, -3.0]))
        seen.append(meter.values.tolist())
    assert np.isnan(seen.pop(2)).all()
    assert seen == [[2.0, 3.0]] * 5


@torch.no_grad()
@pytest.mark.parametrize("through_the_model", [True, False])
def test_sites_of_different_sizes(through_the_model):
    model = nn.Sequential(nn.Identity(), nn.Linear(2, 5), nn.Linear(5, 2))
    meter = ActivationMeter(model, ["0", "1", "2"])
    start = torch.tensor([[1.0, -3.0], [5.0, 7.0]])
    inner = model[1](start)
    sizes = [start.abs(), inner.abs(), model[2](inner).abs()]
    expected = [s.mean().item() for s in sizes] + [s.max().item() for s in sizes]
    for _ in range(2):
        if through_the_model:
            model(start)
        else:
            model[2](model[1](model[0](start)))
        assert meter.values.tolist() == pytest.approx(expected, rel=1e-6)


def test_no_output_is_held_once_the_pass_has_ended():
    model = Encoder(2)
    meter = ActivationMeter(model)
    for _ in range(2):
        model(torch.tensor([[1, 2, 3]]))
        assert meter._kept == {}
    assert np.isfinite(meter.values).all()
