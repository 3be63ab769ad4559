import numpy as np
import pytest
import torch

from minigpt.model import rope_tables, rotate


def slow_rotation(x, base):
    """Halves of the last axis as complex numbers, turned one by one in float64."""
    half = x.shape[-1] // 2
    turned = np.empty(x.shape)
    for t in range(x.shape[-2]):
        for j in range(half):
            angle = t * base ** (-2 * j / x.shape[-1])
            pair = (x[..., t, j] + 1j * x[..., t, half + j]) * np.exp(1j * angle)
            turned[..., t, j], turned[..., t, half + j] = pair.real, pair.imag
    return turned


@pytest.mark.parametrize(("width", "base"), [(16, 10000.0), (6, 100.0), (2, 10000.0)])
def test_rotate_agrees_with_complex_numbers(width, base):
    x = torch.randn(3, 40, width, generator=torch.Generator().manual_seed(0))
    fast = rotate(x, *rope_tables(width, 40, base)).numpy()
    # The float32 angle of position 39 is off by up to 39 x 2^-24 = 2.3e-6, its
    # power of the base by as much again, times |x| <= 5.
    assert fast == pytest.approx(slow_rotation(x.double().numpy(), base), abs=3e-5)


def test_scores_depend_on_the_distance_of_positions_only():
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 16, generator=generator)
    cos, sin = rope_tables(16, 60, 10000.0)

    def score(m, n):
        left, right = rotate(q, cos[m], sin[m]), rotate(k, cos[n], sin[n])
        return (left * right).sum().item()

    near = [score(t + 5, t) for t in range(50)]
    # Rounding of 16 products of size 5 and of the angles, as above.
    assert max(near) - min(near) < 1e-4
    assert abs(score(9, 0) - near[0]) > 0.1
    assert abs(score(0, 5) - near[0]) > 0.1
