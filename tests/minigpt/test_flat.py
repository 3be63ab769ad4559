import numpy as np
import pytest
import torch
from torch import nn

from minigpt.flat import LANE, FlatParameters
from minigpt.model import MiniGPT, ModelConfig

# Hardly a multiple of anything, one a single element, one with three axes.
SHAPES = [(7,), (3, 5), (130,), (65, 2), (64,), (1,), (2, 3, 11)]
MATRICES = ["p1", "p3", "p6"]


class Odd(nn.Module):
    """Parameters of awkward sizes, matrices and vectors mixed."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for index, shape in enumerate(SHAPES):
            values = torch.randn(shape, generator=generator)
            self.register_parameter(f"p{index}", nn.Parameter(values))

    def forward(self, x):
        return sum((p * x).sin().sum() for p in self.parameters())


@pytest.fixture
def odd():
    model = Odd()
    return model, FlatParameters(model)


def gaps(flat):
    """Positions of the flat buffer that belong to no tensor."""
    owned = torch.zeros(flat.values.numel(), dtype=torch.bool)
    for view in flat.views(owned).values():
        view.fill_(True)
    return ~owned


def test_moving_changes_no_value(odd):
    model, _ = odd
    for mine, original in zip(model.parameters(), Odd().parameters(), strict=True):
        assert torch.equal(mine, original)


def test_matrices_lie_first(odd):
    model, flat = odd
    assert flat.names[:3] == MATRICES
    assert sorted(flat.names) == sorted(dict(model.named_parameters()))
    decayed = torch.arange(flat.values.numel()) < flat.n_decayed
    for name, view in flat.views(decayed).items():
        assert view.all() if name in MATRICES else not view.any()


@pytest.mark.parametrize("buffer", ["values", "gradients"])
def test_buffer_and_model_are_the_same_memory(odd, buffer):
    model, flat = odd
    named = dict(model.named_parameters())
    for number, (name, view) in enumerate(flat.views(getattr(flat, buffer)).items()):
        mine = named[name].data if buffer == "values" else named[name].grad
        assert view.shape == mine.shape
        view.fill_(number + 1)
        assert (mine == number + 1).all()
        mine.fill_(-1.0)
        assert (view == -1.0).all()


def test_no_two_tensors_share_an_element_and_each_starts_a_lane(odd):
    _, flat = odd
    elements = torch.arange(flat.values.numel())
    views = flat.views(elements)
    taken = torch.cat([view.flatten() for view in views.values()])
    assert len(taken.unique()) == len(taken) == sum(map(np.prod, SHAPES))
    assert all(view.flatten()[0] % LANE == 0 for view in views.values())


def test_backward_fills_the_flat_gradients_and_leaves_the_gaps_alone(odd):
    model, flat = odd
    reference = Odd()
    for module in (model, reference):
        module(torch.tensor(2.0)).backward()
    wanted = dict(reference.named_parameters())
    for name, view in flat.views(flat.gradients).items():
        assert torch.equal(view, wanted[name].grad)
    lanes = sum(-(-np.prod(shape) // LANE) for shape in SHAPES)
    assert gaps(flat).sum() == lanes * LANE - sum(map(np.prod, SHAPES))
    assert not flat.gradients[gaps(flat)].any()


def test_gradients_add_up_until_they_are_zeroed(odd):
    model, flat = odd
    model(torch.tensor(2.0)).backward()
    once = flat.gradients.clone()
    model(torch.tensor(2.0)).backward()
    assert torch.equal(flat.gradients, 2 * once)


def random_like(flat, scale):
    """Signed numbers of very different sizes in the tensors, zeros in the gaps."""
    generator = np.random.default_rng(4)
    size = flat.values.numel()
    values = generator.standard_normal(size) * 10.0 ** generator.uniform(-3, 3, size)
    values[gaps(flat).numpy()] = 0
    return (values * scale).astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
@pytest.mark.parametrize("make", [Odd, lambda: MiniGPT(ModelConfig(), 0)])
def test_squares_and_sums_agree_with_float64(make, scale):
    flat = FlatParameters(make())
    array = random_like(flat, scale)
    views = flat.views(torch.from_numpy(array))
    assert list(views) == flat.names
    tensors = [view.double().numpy() for view in views.values()]
    squares = [(t**2).sum() for t in tensors]
    # At worst a lane adds LANE roundings of 2^-24; added in parts, they stay far less.
    assert flat.squares(array) == pytest.approx(squares, rel=1e-6, abs=0)
    for found, tensor in zip(flat.sums(array), tensors, strict=True):
        assert found == pytest.approx(tensor.sum(), abs=1e-6 * np.abs(tensor).sum())


def test_reductions_are_float64(odd):
    _, flat = odd
    assert flat.squares(flat.values.numpy()).dtype == np.float64
    assert flat.sums(flat.values.numpy()).dtype == np.float64


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_tensor(odd, poison):
    _, flat = odd
    array = random_like(flat, 1.0)
    flat.views(torch.from_numpy(array))["p3"][64, 1] = poison
    hit = np.array(flat.names) == "p3"
    for reduced in (flat.squares(array), flat.sums(array)):
        assert np.array_equal(~np.isfinite(reduced), hit)
