"""A run that goes to NaN is recorded to the end, without an exception or a warning."""

import math

import numpy as np
import pytest
import torch

from minigpt import records as col
from minigpt.observer import CadenceConfig
from minigpt.training import Session
from tests.minigpt.runs import make_plan, record

ALWAYS = CadenceConfig(validation=1, spectral=1, probe=1)


def poisoned(name, value, **changes):
    """Five healthy steps, one element of a weight replaced, three more steps."""
    session = Session(make_plan(steps=8, cadence=ALWAYS, **changes))
    assert np.isfinite(record(session, until=5).column(col.TRAIN_LOSS)).all()
    with torch.no_grad():
        session.flat.views(session.flat.values)[name].view(-1)[1] = value
    run = record(session)
    assert [r.step for r in run.records] == [5, 6, 7]
    return session, run


@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["blocks.0.ln_1.bias", "ln_final.weight"])
def test_a_poisoned_weight_spreads_and_every_step_is_recorded(name, value, clip):
    _, run = poisoned(name, value, clip=clip)
    assert np.isnan(run.column(col.TRAIN_LOSS)).all()
    assert np.isnan(run.column(col.TOKEN_LOSS_P99)).all()
    assert np.isnan(run.column(col.GRAD_NORM_PRECLIP)).all()
    assert np.isnan(run.column(col.PARAM_NORM)).all()
    assert (run.column(col.NONFINITE_GRADS) == 132_864).all()
    histograms = [r.arrays[col.TOKEN_LOSS_HISTOGRAM] for r in run.records]
    assert all(h[-1] == h.sum() > 0 for h in histograms)
    assert np.isnan(list(run.occasional(col.VAL_LOSS).values())).all()
    spectral = run.occasional(col.SPECTRAL_NORM + "embed.weight")
    assert math.isfinite(spectral[5])  # the poison is elsewhere; one step later not
    assert math.isnan(spectral[6])


@pytest.mark.parametrize("value", [1e20, -1e30, 3e38])
@pytest.mark.parametrize(
    "name", ["embed.weight", "blocks.1.ffn.w_1.bias", "lm_head.bias"]
)
def test_numbers_near_the_end_of_float32_make_no_warning(name, value):
    _, run = poisoned(name, value)
    tensor_norm = run.column(col.TENSOR_PARAM_NORM + name)[0]
    assert not tensor_norm < abs(value) * 0.9  # the square is inf, or all is NaN


def test_an_infinite_bias_poisons_the_update():
    _, run = poisoned("lm_head.bias", -math.inf)
    # exp(-inf) = 0: the loss stays finite where the token is no target.
    assert math.isfinite(run.column(col.TRAIN_LOSS)[0])
    assert run.column(col.PARAM_NORM)[0] == math.inf
    assert math.isnan(run.column(col.UPDATE_NORM)[0])  # inf - inf


class Meddler:
    """Stands in for the fault's seam: puts values into the gradients of step 2."""

    def __init__(self, session, values):
        self.values = values
        session._injection.on_gradients = self

    def __call__(self, step, gradients):
        if step == 2:
            flat = gradients["blocks.0.ffn.w_1.weight"].view(-1)
            flat[: len(self.values)] = torch.tensor(self.values)


@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize(
    ("values", "norm"),
    [
        ([math.nan], math.nan),
        ([math.inf, -math.inf], math.inf),
        ([math.inf, math.nan, 1.0, math.nan], math.nan),
    ],
)
def test_nonfinite_gradients_are_counted_before_the_clip(values, norm, clip):
    session = Session(make_plan(steps=4, clip=clip))
    Meddler(session, values)
    run = record(session)
    bad = sum(not math.isfinite(value) for value in values)
    assert run.column(col.NONFINITE_GRADS)[:3].tolist() == [0, 0, bad]
    assert repr(run.column(col.GRAD_NORM_PRECLIP)[2]) == repr(np.float64(norm))
    # The loss of the step is older than its gradients; the next one has the NaN.
    assert np.isfinite(run.column(col.TRAIN_LOSS)).tolist() == [True] * 3 + [False]
    if clip and norm == math.inf:
        assert run.column(col.CLIP_COEF)[2] == 0.0  # as torch: clip / inf
    if clip and math.isnan(norm):
        assert math.isnan(run.column(col.CLIP_COEF)[2])


def test_a_finite_gradient_whose_square_overflows_is_not_counted():
    session = Session(make_plan(steps=4))
    Meddler(session, [1e25])
    run = record(session)
    assert run.column(col.GRAD_NORM_PRECLIP)[2] == math.inf
    assert run.column(col.NONFINITE_GRADS)[2] == 0
    assert run.column(col.GRAD_NORM_POSTCLIP)[2] == 0.0  # everything times 0
    assert np.isfinite(run.column(col.TRAIN_LOSS)).all()


def test_second_moments_whose_sum_overflows_make_no_warning():
    session = Session(make_plan(steps=4, clip=None))
    Meddler(session, [1e19] * 300)
    run = record(session)
    # 300 elements of 0.05 x 1e38 each: finite one by one, but not their float32 sum.
    sums = run.column(col.EXP_AVG_SQ_SUM + "blocks.0.ffn.w_1.weight")
    assert np.isinf(sums).tolist() == [False, False, True, True]
    assert np.isfinite(session.optimizer.exp_avg_sq.numpy()).all()
    assert np.isfinite(run.column(col.TRAIN_LOSS)).all()
