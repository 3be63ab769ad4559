"""Faults A and C: where a run leaves its healthy twin, and what shows it there."""

import numpy as np
import pytest

from minigpt import records as col
from minigpt.batches import load_dataset
from minigpt.injections import INJECTIONS, build_injection, config_class
from minigpt.records import InputError
from minigpt.training import Session
from tests.minigpt.runs import (
    differing_columns,
    fault,
    first_difference,
    make_plan,
    train,
)
from tests.minigpt.test_observer import residuals

K = 100


def injected(kind, **parameters):
    changes = {"injection": fault(kind, **parameters), "injection_step": K}
    return train(make_plan(steps=140, **changes))


@pytest.fixture(scope="module")
def scaled():
    return injected("scale")


@pytest.fixture(scope="module")
def corrupted():
    return injected("v_corrupt")


def at_k(run, name):
    return run.column(name)[K]


# -- A -----------------------------------------------------------------------------


def test_scale_leaves_the_twin_in_the_gradients_of_k(healthy, scaled):
    step, columns = first_difference(healthy, scaled)
    assert step == K
    assert {col.GRAD_NORM_PRECLIP, col.CLIP_COEF, col.GRAD_NORM + "embed.weight"} <= {
        *columns
    }
    assert not {col.TRAIN_LOSS, col.TOKEN_LOSS, col.BATCH_FINGERPRINT} & {*columns}


def test_scale_multiplies_every_gradient_before_the_clip(healthy, scaled):
    for name in scaled.layout.tensors:
        if name.startswith(col.GRAD_NORM):
            ratio = at_k(scaled, name) / at_k(healthy, name)
            assert ratio == pytest.approx(50, rel=1e-6), name
    before = scaled.column(col.GRAD_NORM_PRECLIP)[K - 50 : K]
    assert at_k(scaled, col.GRAD_NORM_PRECLIP) >= 30 * np.median(before)
    assert at_k(scaled, col.GRAD_NORM_POSTCLIP) == pytest.approx(1.0, rel=2e-6)
    # The clip divides the factor away: only rounding is left in the weights.
    norms = [at_k(run, col.UPDATE_NORM) for run in (healthy, scaled)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


def test_scale_acts_at_k_only(healthy, scaled):
    ratio = scaled.column(col.GRAD_NORM_PRECLIP) / healthy.column(col.GRAD_NORM_PRECLIP)
    assert np.abs(np.delete(ratio, K) - 1).max() < 1e-2


def test_scale_without_a_clip_reaches_the_update():
    plan = {"clip": None, "steps": 22, "injection_step": 20}
    calm, run = (
        train(make_plan(**plan, injection=injection))
        for injection in (fault("none"), fault("scale", factor=50))
    )
    ratio = run.column(col.GRAD_NORM_POSTCLIP) / calm.column(col.GRAD_NORM_POSTCLIP)
    assert ratio[:21] == pytest.approx([1] * 20 + [50], rel=1e-6)
    grown = run.column(col.UPDATE_NORM) / calm.column(col.UPDATE_NORM)
    assert (grown[:20] == 1.0).all()
    assert abs(grown[20] - 1) > 0.1  # smaller: v grows by more than m while m is large
    assert max(values.max() for values in residuals(run, 0.95).values()) < 1e-5


# -- C -----------------------------------------------------------------------------


def test_v_corrupt_leaves_the_twin_in_one_moment_of_k(healthy, corrupted):
    step, columns = first_difference(healthy, corrupted)
    assert (step, columns) == (K, [col.EXP_AVG_SQ_SUM + "lm_head.bias"])
    ratio = at_k(corrupted, columns[0]) / at_k(healthy, columns[0])
    assert ratio == pytest.approx(100, rel=1e-6)
    # The update of K was made before; the next one is the first that is smaller.
    name = col.TENSOR_UPDATE_NORM + "lm_head.bias"
    assert corrupted.column(name)[K + 1] < 0.2 * healthy.column(name)[K + 1]
    assert (
        corrupted.column(col.TRAIN_LOSS)[K + 1] == healthy.column(col.TRAIN_LOSS)[101]
    )
    assert (
        corrupted.column(col.TRAIN_LOSS)[K + 2] != healthy.column(col.TRAIN_LOSS)[102]
    )


def test_v_corrupt_breaks_the_accounting_there_and_nowhere_else(corrupted):
    found = residuals(corrupted, 0.95)
    assert found["lm_head.bias"][K] > 0.9
    found["lm_head.bias"][K] = 0.0
    assert max(values.max() for values in found.values()) < 1e-5


def test_v_corrupt_hits_the_target_it_is_given(healthy):
    target = "blocks.1.ffn.w_2.weight"
    injection = fault("v_corrupt", factor=3.0, target=target)
    run = train(make_plan(steps=5, injection=injection, injection_step=4))
    column = col.EXP_AVG_SQ_SUM + target
    assert first_difference(healthy, run) == (4, [column])
    ratio = run.column(column)[4] / healthy.column(column)[4]
    assert ratio == pytest.approx(3, rel=1e-6)


# -- all ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["scale", "bad_batch", "v_corrupt"])
def test_a_fault_at_step_0_shows_at_step_0(healthy, kind):
    run = train(make_plan(steps=1, injection=fault(kind), injection_step=0))
    assert differing_columns(run.layout, healthy.records[0], run.records[0])


def test_a_fault_beyond_the_end_leaves_no_trace(healthy):
    run = train(make_plan(steps=10, injection=fault("scale"), injection_step=10))
    assert first_difference(healthy, run) is None


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("scale", {"factor": 0.0}, r"injection\.factor: expected > 0, got 0\.0"),
        ("scale", {"factor": float("nan")}, r"injection\.factor: .* got nan"),
        ("v_corrupt", {"factor": -1.0}, r"injection\.factor: .* got -1\.0"),
        (
            "v_corrupt",
            {"target": "head"},
            r"injection\.target: .*head\.bias; got 'h",
        ),
        ("bad_batch", {"sentence": "I am."}, r"injection\.sentence: .* got 'I am\.'"),
        ("bad_batch", {"rows": 9}, r"injection\.rows: .* batch size \(8\), got 9"),
        ("bad_batch", {"rows": 0}, r"injection\.rows: expected 1 to .* got 0"),
    ],
)
def test_what_cannot_work_is_refused_before_step_0(kind, parameters, message):
    with pytest.raises(InputError, match=message):
        Session(make_plan(injection=fault(kind, **parameters)))


def test_an_unknown_fault_is_refused_with_the_choices():
    with pytest.raises(InputError, match=r"expected one of none, scale.*; got 'spike'"):
        config_class("spike")
    config = fault("none")
    config.kind = "spike"
    with pytest.raises(InputError, match="got 'spike'"):
        build_injection(config, 0, load_dataset()[0], 8)


def test_every_fault_is_registered_under_its_own_name():
    assert all(config_class(kind)(kind=kind).kind == kind for kind in INJECTIONS)
    assert [k for k in INJECTIONS if not config_class(k).uses_step] == ["none"]
