import math
from itertools import pairwise

import pytest

from minigpt.records import LR, LR_DECLARED, InputError
from minigpt.schedule import ScheduleConfig, declared_lr


@pytest.mark.parametrize(
    ("step", "lr"),
    [
        (0, 3e-6),  # 3e-4 x 1 / 100
        (49, 1.5e-4),
        (98, 2.97e-4),
        (99, 3e-4),  # the last warmup step is at the peak
        (100, 3e-4),  # and so is the first of the cosine
        (1050, 1.65e-4),  # half way: (3e-4 + 3e-5) / 2
        (2000, 3e-5),
        (2001, 3e-5),
        (10**6, 3e-5),
    ],
)
def test_values_by_hand(step, lr):
    assert declared_lr(ScheduleConfig(), step) == pytest.approx(lr, rel=1e-12)


def test_step_312_and_the_last_one():
    # cos(212 pi / 1900) = 0.939189, 3e-5 + 2.7e-4 x 1.939189 / 2 = 2.917905e-4
    assert declared_lr(ScheduleConfig(), 312) == pytest.approx(2.917905e-4, rel=1e-6)
    # 1 + cos(pi - x) = x^2 / 2 with x = pi / 1900: 3e-5 + 2.7e-4 x 6.835e-7
    excess = declared_lr(ScheduleConfig(), 1999) - 3e-5
    assert excess == pytest.approx(2.7e-4 * (math.pi / 1900) ** 2 / 4, rel=1e-5)


def test_without_warmup_the_first_step_is_at_the_peak():
    config = ScheduleConfig(warmup_steps=0)
    assert declared_lr(config, 0) == 3e-4
    assert declared_lr(config, 1000) == pytest.approx(1.65e-4, rel=1e-12)


def test_rises_through_the_warmup_and_then_falls_to_the_floor():
    rates = [declared_lr(ScheduleConfig(), t) for t in range(2001)]
    assert all(a < b for a, b in pairwise(rates[:100]))
    assert all(a > b for a, b in pairwise(rates[100:]))
    assert max(rates) == 3e-4


def test_every_constant_is_the_configs():
    config = ScheduleConfig(lr_max=1.0, lr_min=0.5, warmup_steps=4, total_steps=8)
    rates = [declared_lr(config, t) for t in range(9)]
    cosine = [0.75 + 0.25 * math.cos(math.pi * k / 4) for k in range(5)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, *cosine])


def test_the_record_holds_the_rate_of_its_own_step(healthy):
    wanted = [declared_lr(ScheduleConfig(), t) for t in range(140)]
    assert healthy.column(LR).tolist() == wanted
    assert healthy.column(LR_DECLARED).tolist() == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "linear"}, r"schedule\.kind: expected 'cosine', got 'linear'"),
        ({"lr_max": 0.0}, r"schedule\.lr_max: expected > 0 and finite, got 0\.0"),
        ({"lr_max": math.nan}, r"schedule\.lr_max: .* got nan"),
        ({"lr_max": math.inf}, r"schedule\.lr_max: .* got inf"),
        ({"lr_min": 4e-4}, r"schedule\.lr_min: expected 0 to lr_max \(0\.0003\), got"),
        ({"lr_min": -1e-9}, r"schedule\.lr_min: .* got -1e-09"),
        ({"warmup_steps": -1}, r"schedule\.warmup_steps: .* got -1"),
        ({"warmup_steps": 2000}, r"expected 0 to total_steps - 1 \(1999\), got 2000"),
        ({"total_steps": 100}, r"expected 0 to total_steps - 1 \(99\), got 100"),
    ],
)
def test_wrong_schedules_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ScheduleConfig(**changes)
