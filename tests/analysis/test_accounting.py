"""Optimizer accounting, on states that follow Adam's law and on states that do not."""

import dataclasses

import numpy as np
import pytest

from analysis.accounting import accounting_residual
from analysis.history import load
from minigpt import records as r
from minigpt.records import RecordLayout, StepRecord

SIZES = {"embed.weight": 64, "block.bias": 16, "lm_head.bias": 1}
STEPS, K = 120, 70
BETA1, BETA2 = 0.9, 0.95


class Adam:
    """Adam's moments in float32, with faults that act on them at step K."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.m = {name: np.zeros(size, "f4") for name, size in SIZES.items()}
        self.v = {name: np.zeros(size, "f4") for name, size in SIZES.items()}
        self.rows = []

    def gradients(self, step):
        scale = 10 ** self.rng.uniform(-1, 1)
        return {
            name: (scale * self.rng.standard_normal(size)).astype("f4")
            for name, size in SIZES.items()
        }

    def step(self, step, grads=None, skipped=False, fault=None):
        grads = self.gradients(step) if grads is None else grads
        total = np.sqrt(
            sum(float(np.sum(g.astype(float) ** 2)) for g in grads.values())
        )
        coef = min(1.0, 1.0 / (total + 1e-6)) if np.isfinite(total) else 0.0
        for name, grad in grads.items():
            if not skipped:
                clipped = grad * np.float32(coef)
                self.m[name] = np.float32(BETA1) * self.m[name]
                self.m[name] += np.float32(1 - BETA1) * clipped
                self.v[name] = np.float32(BETA2) * self.v[name]
                self.v[name] += np.float32(1 - BETA2) * clipped**2
        if fault is not None:
            fault(self)
        self.rows.append(self.row(step, grads, total, coef, skipped))

    def row(self, step, grads, total, coef, skipped):
        def each(function, values):
            return [function(values[name].astype(float)) for name in SIZES]

        norms = each(np.linalg.norm, grads)
        tensors = norms + each(np.linalg.norm, self.m) + each(np.sum, self.v)
        scalars = np.array([1.0, total, coef, float(skipped)])
        return StepRecord(step, scalars, np.array(tensors, "f4"), np.zeros(0, "u8"))


LAYOUT = RecordLayout(
    scalars=(r.TRAIN_LOSS, r.GRAD_NORM_PRECLIP, r.CLIP_COEF, r.STEP_SKIPPED),
    tensors=tuple(
        prefix + name
        for prefix in (r.GRAD_NORM, r.EXP_AVG_NORM, r.EXP_AVG_SQ_SUM)
        for name in SIZES
    ),
)


@pytest.fixture
def history_of(build, tmp_path):
    def make(adam, layout=LAYOUT, **facts):
        facts = build.facts | facts
        return load(build.run(tmp_path, adam.rows, layout, facts=facts))

    return make


def trained(fault=None):
    adam = Adam()
    for step in range(STEPS):
        adam.step(step, fault=fault if step == K else None)
    return adam


def with_column(history, name, values):
    """The same history with one column replaced, or removed if None."""
    flat = {key: column for key, column in history.data.flat.items() if key != name}
    if values is not None:
        flat[name] = values
    return dataclasses.replace(
        history, data=dataclasses.replace(history.data, flat=flat)
    )


def corrupt_v(adam):
    adam.v["lm_head.bias"] *= np.float32(100)


# -- the second moment -------------------------------------------------------------


def test_health_leaves_no_residual(history_of):
    result = accounting_residual(history_of(trained()))
    assert result.tensors == list(SIZES)
    assert result.residual.shape == (STEPS, len(SIZES))
    assert result.residual.max() < 1e-6
    assert result.nonfinite.tolist() == [0, 0, 0]
    assert result.not_applicable == {}


def test_a_v_times_100_shows_at_its_step_and_in_its_tensor_only(history_of):
    result = accounting_residual(history_of(trained(corrupt_v)))
    index = result.tensors.index("lm_head.bias")
    assert result.residual[K, index] == pytest.approx(0.99, abs=0.005)
    result.residual[K, index] = 0
    assert result.residual.max() < 1e-6


def test_lost_moments_show_in_every_tensor(history_of):
    def forget(adam):
        for name in SIZES:
            adam.m[name][:] = 0
            adam.v[name][:] = 0

    result = accounting_residual(history_of(trained(forget)))
    assert np.isinf(result.residual[K]).all()
    assert (result.first_moment_excess[K] > 0.1).any()
    result.residual[K] = 0
    assert result.residual.max() < 1e-6


def test_the_residual_equals_a_loop(history_of):
    history = history_of(trained(corrupt_v))
    result = accounting_residual(history)
    coef = history.scalar(r.CLIP_COEF)
    for index, name in enumerate(SIZES):
        grad = history.scalar(r.GRAD_NORM + name)
        actual = history.scalar(r.EXP_AVG_SQ_SUM + name)
        norm = history.scalar(r.EXP_AVG_NORM + name)
        for t in range(STEPS):
            before = actual[t - 1] if t else 0.0
            expected = BETA2 * before + (1 - BETA2) * (grad[t] * coef[t]) ** 2
            residual = abs(actual[t] - expected) / actual[t]
            assert result.residual[t, index] == pytest.approx(residual, abs=1e-12)
            kept = BETA1 * (norm[t - 1] if t else 0.0)
            added = (1 - BETA1) * grad[t] * coef[t]
            excess = max(0, abs(norm[t] - kept) - added) / max(norm[t], kept, added)
            found = result.first_moment_excess[t, index]
            assert found == pytest.approx(excess, abs=1e-12)


def test_a_skipped_step_must_leave_the_state_alone(history_of):
    adam, infinite = (
        Adam(),
        {name: np.full(n, np.inf, "f4") for name, n in SIZES.items()},
    )
    for step in range(STEPS):
        skipped = step in (0, K, K + 1)
        adam.step(step, grads=infinite if skipped else None, skipped=skipped)
    history = history_of(adam)
    result = accounting_residual(history)
    assert result.residual.max() < 1e-6
    assert result.first_moment_excess.max() < 1e-6
    assert result.nonfinite.tolist() == [0, 0, 0]
    said_not_skipped = with_column(history, r.STEP_SKIPPED, np.zeros(STEPS))
    assert accounting_residual(said_not_skipped).nonfinite.tolist() == [3, 3, 3]


def test_a_state_that_moves_in_a_skipped_step_shows(history_of):
    adam = Adam()
    for step in range(STEPS):
        adam.step(step)
    skipped = np.zeros(STEPS)
    skipped[K] = 1
    result = accounting_residual(with_column(history_of(adam), r.STEP_SKIPPED, skipped))
    assert (result.residual[K] > 1e-3).all()
    assert (result.first_moment_excess[K] > 1e-3).any()


def test_non_finite_values_are_counted_and_not_judged(history_of):
    def poison(adam):
        adam.v["embed.weight"][0] = np.nan

    result = accounting_residual(history_of(trained(poison)))
    assert result.nonfinite.tolist() == [STEPS - K, 0, 0]
    assert np.isnan(result.residual[K:, 0]).all()
    assert np.isfinite(result.residual[:K, 0]).all()
    assert result.not_applicable == {}


def test_nothing_from_nothing_leaves_no_residual(history_of):
    adam = Adam()
    for step in range(STEPS):
        adam.step(step)
    for row in adam.rows[:30]:
        row.tensors[:] = 0
    result = accounting_residual(history_of(adam))
    assert (result.residual[:30] == 0).all()
    assert (result.first_moment_excess[:30] == 0).all()


def test_gradients_too_small_for_float32_squares_raise_no_alarm(history_of):
    adam = Adam()
    for step in range(STEPS):
        tiny = {name: g * np.float32(1e-22) for name, g in adam.gradients(step).items()}
        adam.step(step, grads=tiny)
    history = history_of(adam)
    actual = history.scalar(r.EXP_AVG_SQ_SUM + "block.bias")
    grad = history.scalar(r.GRAD_NORM + "block.bias")
    raw = abs(actual[0] - 0.05 * grad[0] ** 2) / 0.05 / grad[0] ** 2
    assert raw > 1e-4  # the law does not hold here, and says nothing
    assert (accounting_residual(history).residual == 0).all()


# -- the first moment --------------------------------------------------------------


def test_the_bound_on_m_holds_in_health(history_of):
    result = accounting_residual(history_of(trained()))
    assert result.first_moment_not_applicable == {}
    assert (result.first_moment_excess >= 0).all()
    assert result.first_moment_excess.max() < 1e-6


def test_an_m_that_grew_from_nothing_exceeds_the_bound(history_of):
    def grow(adam):
        adam.m["block.bias"] *= np.float32(50)

    result = accounting_residual(history_of(trained(grow)))
    assert result.first_moment_excess[K].argmax() == 1
    assert result.first_moment_excess[K, 1] > 0.9
    assert result.first_moment_excess[:K].max() < 1e-6
    assert result.residual.max() < 1e-6


# -- what cannot be judged ---------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_a_tensor_without_gradient_is_not_applicable(history_of, value):
    column = r.GRAD_NORM + "block.bias"
    history = with_column(history_of(trained()), column, np.full(STEPS, value))
    result = accounting_residual(history)
    index = result.tensors.index("block.bias")
    assert list(result.not_applicable) == ["block.bias"]
    assert "no gradient" in result.not_applicable["block.bias"]
    assert np.isnan(result.residual[:, index]).all()
    assert result.nonfinite[index] == 0
    assert np.isfinite(np.delete(result.residual, index, axis=1)).all()


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        ({"kind": "sgd"}, "the optimizer is sgd, not adam or adamw"),
        ({}, "does not name the optimizer"),
        ({"kind": "adamw", "beta1": 0.9}, "does not say beta2"),
        ({"kind": "adam", "weight_decay": 0.1}, "adam may add weight decay"),
    ],
)
def test_another_optimizer_is_not_applicable(history_of, optimizer, reason):
    result = accounting_residual(history_of(trained(), optimizer=optimizer))
    assert list(result.not_applicable) == list(SIZES)
    assert all(reason in text for text in result.not_applicable.values())
    assert np.isnan(result.residual).all()


def test_plain_adam_without_decay_is_judged(history_of):
    optimizer = {"kind": "Adam", "beta1": 0.9, "beta2": 0.95, "weight_decay": 0}
    result = accounting_residual(history_of(trained(), optimizer=optimizer))
    assert result.residual.max() < 1e-6


def test_a_missing_state_column_concerns_one_tensor_and_one_moment(history_of):
    history = history_of(trained())
    history = with_column(history, r.EXP_AVG_SQ_SUM + "block.bias", None)
    history = with_column(history, r.EXP_AVG_NORM + "lm_head.bias", None)
    result = accounting_residual(history)
    assert result.not_applicable == {
        "block.bias": "column exp_avg_sq_sum/block.bias is missing"
    }
    assert result.first_moment_not_applicable == {
        "lm_head.bias": "column exp_avg_norm/lm_head.bias is missing"
    }


def test_without_clip_coefficient_only_an_unclipped_run_is_judged(history_of):
    adam = Adam()
    for step in range(STEPS):
        small = {n: g * np.float32(1e-3) for n, g in adam.gradients(step).items()}
        adam.step(step, grads=small)
    clipped = with_column(history_of(adam), r.CLIP_COEF, None)
    reasons = accounting_residual(clipped).not_applicable
    assert set(reasons.values()) == {"column optim/clip_coef is missing"}
    unclipped = with_column(history_of(adam, clip=None), r.CLIP_COEF, None)
    assert accounting_residual(unclipped).residual.max() < 1e-6


def test_a_missing_gradient_column_and_an_empty_run(history_of):
    history = with_column(history_of(trained()), r.GRAD_NORM + "block.bias", None)
    reasons = accounting_residual(history).not_applicable
    assert reasons == {"block.bias": "column grad_norm/block.bias is missing"}
    result = accounting_residual(history_of(Adam()))
    assert set(result.not_applicable.values()) == {"the record has no steps"}


@pytest.mark.parametrize(
    ("steps", "judged"),
    [(np.arange(STEPS) + 500, True), (np.arange(STEPS) * 10, False)],
)
def test_a_record_that_starts_late_or_has_gaps(history_of, steps, judged):
    history = dataclasses.replace(history_of(trained()), steps=steps)
    result = accounting_residual(history)
    assert np.isnan(result.residual[0]).all()
    assert np.isfinite(result.residual[1:]).all() == judged
    if not judged:
        assert "every step" in result.not_applicable["embed.weight"]
