"""Every column of the observer against a slow reference, on real steps."""

import math

import numpy as np
import pytest

from minigpt import records as col
from minigpt.model import MiniGPT, token_losses
from minigpt.observer import CadenceConfig
from minigpt.optimizer import AdamWConfig
from minigpt.records import InputError
from minigpt.training import Session
from tests.minigpt.runs import make_plan, record, train

MEASURED_AT = 12  # some steps in, so that both moments hold a history


class Reference:
    """Step 12 once more: torch's own backward pass, float64 norms, forward hooks."""

    def __init__(self):
        session = Session(make_plan(steps=MEASURED_AT + 1))
        record(session, until=MEASURED_AT)
        self.model = MiniGPT(session.plan.model, seed=0)
        self.model.load_state_dict(session.model.state_dict())
        self.before = self.named(self.model.named_parameters())
        batch = self.served(session)
        self.outputs = {}
        for site in session.sites:
            self.model.get_submodule(site).register_forward_hook(self.keep(site))
        token_losses(self.model(batch.inputs), batch.targets)[1].backward()
        self.run = record(session)
        self.after = self.named(session.model.named_parameters())
        views = session.flat.views
        self.exp_avg = self.named(views(session.optimizer.exp_avg).items())
        self.exp_avg_sq = self.named(views(session.optimizer.exp_avg_sq).items())

    @staticmethod
    def served(session):
        """The batch of the coming step; the loader stays where it is."""
        batch = session.loader.next()
        session.loader.position -= 1
        return batch

    @staticmethod
    def named(pairs):
        return {name: tensor.detach().double().clone() for name, tensor in pairs}

    def keep(self, site):
        def hook(module, inputs, output):
            self.outputs[site] = output.detach().double().abs()

        return hook

    def gradients(self):
        return {n: p.grad.double() for n, p in self.model.named_parameters()}

    def changes(self):
        return {name: self.after[name] - self.before[name] for name in self.after}


@pytest.fixture(scope="module")
def reference():
    return Reference()


def l2(tensors):
    return math.sqrt(sum((tensor**2).sum().item() for tensor in tensors.values()))


def per_tensor(reference, prefix):
    """Name -> the recorded value, for all 28 tensors."""
    columns = [c for c in reference.run.layout.tensors if c.startswith(prefix)]
    assert len(columns) == 28
    return {c.removeprefix(prefix): reference.run.column(c)[0] for c in columns}


# Float32 sums over lanes and float32 storage: 2^-24 = 6e-8, a few times.
CLOSE = {"rel": 5e-7, "abs": 0}


@pytest.mark.parametrize(
    ("prefix", "tensors"),
    [
        (col.GRAD_NORM, Reference.gradients),
        (col.TENSOR_PARAM_NORM, lambda reference: reference.after),
        (col.TENSOR_UPDATE_NORM, Reference.changes),
        (col.EXP_AVG_NORM, lambda reference: reference.exp_avg),
    ],
)
def test_norm_of_every_tensor(reference, prefix, tensors):
    expected = {n: t.norm().item() for n, t in tensors(reference).items()}
    assert min(expected.values()) > 0
    assert per_tensor(reference, prefix) == pytest.approx(expected, **CLOSE)


def test_second_moment_sum_of_every_tensor(reference):
    expected = {n: t.sum().item() for n, t in reference.exp_avg_sq.items()}
    assert per_tensor(reference, col.EXP_AVG_SQ_SUM) == pytest.approx(expected, **CLOSE)


def test_activations_of_every_site(reference):
    run = reference.run
    assert set(reference.outputs) == {"embed", "blocks.0", "blocks.1", "ln_final"}
    for site, output in reference.outputs.items():
        mean, largest = run.column(col.ACT_MEAN_ABS + site)[0], output.max().item()
        assert mean == pytest.approx(output.mean().item(), **CLOSE)
        assert run.column(col.ACT_MAX_ABS + site)[0] == largest


def test_global_norms(reference):
    run = reference.run
    assert run.column(col.GRAD_NORM_PRECLIP)[0] == pytest.approx(
        l2(reference.gradients()), **CLOSE
    )
    update = l2(reference.changes())
    assert run.column(col.UPDATE_NORM)[0] == pytest.approx(update, **CLOSE)
    assert run.column(col.PARAM_NORM)[0] == pytest.approx(l2(reference.after), **CLOSE)
    relative = update / l2(reference.before)
    assert run.column(col.RELATIVE_UPDATE)[0] == pytest.approx(relative, **CLOSE)


def test_relative_update_is_over_the_norm_before(healthy):
    update, norm = healthy.column(col.UPDATE_NORM), healthy.column(col.PARAM_NORM)
    relative = healthy.column(col.RELATIVE_UPDATE)
    assert relative[1:].tolist() == (update[1:] / norm[:-1]).tolist()
    start = MiniGPT(make_plan().model, seed=42)
    before = l2(Reference.named(start.named_parameters()))
    assert relative[0] == pytest.approx(update[0] / before, **CLOSE)


def test_global_norms_follow_from_the_tensors(healthy):
    for total, prefix in (
        (col.GRAD_NORM_PRECLIP, col.GRAD_NORM),
        (col.PARAM_NORM, col.TENSOR_PARAM_NORM),
        (col.UPDATE_NORM, col.TENSOR_UPDATE_NORM),
    ):
        names = [c for c in healthy.layout.tensors if c.startswith(prefix)]
        squares = sum(healthy.column(c).astype(np.float64) ** 2 for c in names)
        assert healthy.column(total) == pytest.approx(np.sqrt(squares), rel=2e-7)


def residuals(run, beta2):
    """Tensor -> |S_t - (b2 S_(t-1) + (1 - b2) |clipped g_t|^2)| / S_t, all steps."""
    found = {}
    for column in run.layout.tensors:
        if column.startswith(col.EXP_AVG_SQ_SUM):
            name = column.removeprefix(col.EXP_AVG_SQ_SUM)
            sums = run.column(column).astype(np.float64)
            norm = run.column(col.GRAD_NORM + name).astype(np.float64)
            clipped = norm * run.column(col.CLIP_COEF)
            before = np.concatenate([[0.0], sums[:-1]])
            expected = beta2 * before + (1 - beta2) * clipped**2
            found[name] = np.abs(sums - expected) / sums
    return found


@pytest.mark.parametrize(("clip", "beta2"), [(1.0, 0.95), (None, 0.999)])
def test_second_moments_follow_from_the_clipped_gradients(clip, beta2):
    run = train(make_plan(steps=60, clip=clip, optimizer=AdamWConfig(beta2=beta2)))
    coefficients = run.column(col.CLIP_COEF)
    assert (coefficients.max() < 1.0) == (clip is not None)
    found = residuals(run, beta2)
    assert len(found) == 28
    # The design's bound; what rounding leaves is measured at 2e-7.
    assert max(values.max() for values in found.values()) < 1e-5


def test_first_moments_stay_within_the_triangle_inequality(healthy):
    coefficient = healthy.column(col.CLIP_COEF)
    for column in healthy.layout.tensors:
        if column.startswith(col.EXP_AVG_NORM):
            norm = healthy.column(column).astype(np.float64)
            name = column.removeprefix(col.EXP_AVG_NORM)
            gradient = healthy.column(col.GRAD_NORM + name) * coefficient
            moved = np.abs(norm[1:] - 0.9 * norm[:-1])
            assert (moved <= 0.1 * gradient[1:] + 1e-6 * norm[1:]).all(), name


def test_a_row_is_a_copy():
    session = Session(make_plan(steps=2))
    first, second = session.records()
    assert not np.shares_memory(first.tensors, second.tensors)
    assert first.tensors.tolist() != second.tensors.tolist()


@pytest.mark.parametrize("name", ["validation", "spectral", "probe"])
def test_negative_cadence_is_refused(name):
    with pytest.raises(InputError, match=rf"cadence\.{name}: .* got -1"):
        CadenceConfig(**{name: -1})
