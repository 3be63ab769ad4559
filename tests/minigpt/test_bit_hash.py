from itertools import combinations

import numpy as np
import pytest
import torch

from minigpt.bit_hash import hash_bits
from minigpt.flat import FlatParameters
from minigpt.flat_reader import FlatReader
from minigpt.model import MiniGPT, ModelConfig
from minigpt.optimizer import AdamWConfig, FlatAdamW
from minigpt.watch import ModuleReader

SIZES = pytest.mark.parametrize("size", [1, 2, 33, 64, 1000, 132_864])


def numbers(size):
    return np.random.default_rng(size).standard_normal(size).astype(np.float32)


def places(size):
    """All places of a small array; the ends and a sample of a large one."""
    if size <= 64:
        return list(range(size))
    sample = np.random.default_rng(0).choice(np.arange(2, size - 2), 20, replace=False)
    return [0, 1, *sorted(sample.tolist()), size - 2, size - 1]


def test_is_the_published_function_so_every_process_gets_the_same():
    """Test vector of the reference implementation: XXH3_64bits of no bytes, seed 0."""
    assert hash_bits(numbers(0)) == 0x2D06800538D394C2
    assert hash_bits(np.arange(64, dtype=np.float32)) == 0x7AA04F063757B005


@SIZES
def test_a_single_flipped_bit_changes_the_hash(size):
    values = numbers(size)
    before, bits = hash_bits(values), values.view(np.uint32)
    for place in places(size):
        for bit in range(32):
            bits[place] ^= np.uint32(1 << bit)
            assert hash_bits(values) != before, (place, bit)
            bits[place] ^= np.uint32(1 << bit)
    assert hash_bits(values) == before


@SIZES
def test_two_changed_signs_do_not_cancel(size):
    values = numbers(size)
    before, chosen = hash_bits(values), places(size)
    for pair in combinations(chosen, 2):
        values[list(pair)] *= -1
        assert hash_bits(values) != before, pair
        values[list(pair)] *= -1
    assert hash_bits(-values) != hash_bits(values)


@SIZES
@pytest.mark.parametrize("second", [2.0, -1.0, 0.0, -0.0])
def test_swapped_elements_change_the_hash(size, second):
    values = numbers(size)
    chosen = places(size)
    for a, b in zip(chosen, chosen[1:] + chosen[:1], strict=True):
        if a != b:
            values[[a, b]] = 1.0, second
            before = hash_bits(values)
            values[[a, b]] = second, 1.0
            assert hash_bits(values) != before, (a, b)


@pytest.mark.parametrize("size", [64, 1000, 132_864])
def test_a_changed_order_changes_the_hash(size):
    values = numbers(size)
    half = size // 2
    orders = [values, values[::-1], np.roll(values, 1), np.roll(values, half)]
    assert len({hash_bits(np.ascontiguousarray(order)) for order in orders}) == 4


def test_nan_and_zero_have_bits_like_any_number():
    arrays = [[0.0], [-0.0], [np.nan], [np.inf], [1e-45]]
    hashes = {hash_bits(np.array(array, dtype=np.float32)) for array in arrays}
    assert len(hashes) == 5


@pytest.mark.parametrize("kind", ["flat", "module"])
def test_every_parameter_of_a_model_counts(kind):
    model = MiniGPT(ModelConfig(), seed=0)
    if kind == "flat":
        flat = FlatParameters(model)
        reader = FlatReader(flat, FlatAdamW(flat, AdamWConfig()))
    else:
        reader = ModuleReader(model, torch.optim.SGD(model.parameters(), lr=1.0))

    def look() -> int:
        reader.parameter_squares()
        return reader.parameter_hash()

    seen = {look()}
    for parameter in model.parameters():
        flattened = parameter.data.view(-1).numpy().view(np.uint32)
        for place in (0, 1, len(flattened) // 2, len(flattened) - 1):
            flattened[place] ^= np.uint32(1)
            seen.add(look())
            flattened[place] ^= np.uint32(1)
    assert len(seen) == 1 + 4 * 28
    assert look() in seen
