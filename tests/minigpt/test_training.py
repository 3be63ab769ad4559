"""The order of a step, its determinism and its clip, against plain torch loops."""

import math
import time

import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from minigpt import records as col
from minigpt.batches import load_dataset
from minigpt.flat import FlatParameters
from minigpt.loaders import RandomLoader
from minigpt.model import MiniGPT, token_losses
from minigpt.observer import CadenceConfig
from minigpt.schedule import declared_lr
from minigpt.training import Session
from tests.minigpt.runs import first_difference, make_plan, record, train


def plain_loop(plan, clip):
    """Plain torch, nothing of ours but model, loader and schedule.

    ``clip`` is given the model and clips its gradients. Yields loss and weights.
    """
    model = MiniGPT(plan.model, plan.seed)
    loader = RandomLoader(load_dataset()[0], 8, plan.data_seed)
    config = plan.optimizer
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2]},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )
    for t in range(plan.steps):
        batch = loader.next()
        optimizer.zero_grad()
        loss = token_losses(model(batch.inputs), batch.targets)[1]
        loss.backward()
        clip(model)
        for group in optimizer.param_groups:
            group["lr"] = declared_lr(plan.schedule, t)
        optimizer.step()
        yield loss.item(), {n: p.detach() for n, p in model.named_parameters()}


def clip_as_recorded(model):
    """Clip to 1.0 with the norm in the precision that the session has it in."""
    gradients = {name: p.grad for name, p in model.named_parameters()}
    flat = FlatParameters(MiniGPT(model.config, seed=0))
    for name, view in flat.views(flat.gradients).items():
        view.copy_(gradients[name])
    norm = math.sqrt(flat.squares(flat.gradients.numpy()).sum())
    for gradient in gradients.values():
        gradient.mul_(float(np.float32(min(1.0, 1.0 / (norm + 1e-6)))))


@pytest.mark.parametrize(
    ("clip", "clipping"), [(None, lambda model: None), (1.0, clip_as_recorded)]
)
def test_without_a_fault_bit_identical_to_a_plain_loop(clip, clipping):
    plan = make_plan(steps=40, clip=clip)
    session = Session(plan)
    records = session.records()
    for loss, weights in plain_loop(plan, clipping):
        assert next(records).scalars[1] == loss
        for name, view in session.flat.views(session.flat.values).items():
            assert torch.equal(view, weights[name]), (session.step, name)
    assert session.layout.scalars[1] == col.TRAIN_LOSS
    assert next(records, None) is None


def test_clipping_is_torchs_up_to_rounding():
    # The coefficients differ by at most a rounding or two of 2^-24, and 40 steps of
    # warmup hardly amplify it: the largest difference of a loss is measured at 5e-7.
    plan = make_plan(steps=40)
    losses = train(plan).column(col.TRAIN_LOSS)
    plain = [
        loss
        for loss, _ in plain_loop(plan, lambda m: clip_grad_norm_(m.parameters(), 1.0))
    ]
    assert losses == pytest.approx(plain, abs=5e-6)


def test_the_same_plan_twice_gives_identical_records():
    often = CadenceConfig(validation=4, spectral=6, probe=5)
    plan = make_plan(steps=30, cadence=often)
    assert first_difference(train(plan), train(plan)) is None


@pytest.mark.parametrize("seed", ["seed", "data_seed"])
def test_either_seed_changes_the_run_from_the_start(healthy, seed):
    step, columns = first_difference(healthy, train(make_plan(steps=2, **{seed: 43})))
    assert step == 0
    assert col.TRAIN_LOSS in columns
    assert (col.BATCH_FINGERPRINT in columns) == (seed == "data_seed")


def test_a_run_cut_short_is_a_prefix(healthy):
    cut = train(make_plan(steps=37))
    assert len(cut) == 37
    assert first_difference(healthy, cut) is None


def test_stopping_on_the_way_changes_nothing(healthy):
    session = Session(make_plan(steps=37))
    first = record(session, until=20)
    assert (len(first), session.step) == (20, 20)
    assert len(record(session, until=20)) == 0
    rest = record(session, until=999)
    assert [r.step for r in rest.records] == list(range(20, 37))
    first.records += rest.records
    assert first_difference(healthy, first) is None


def test_the_loss_is_taken_before_the_update_of_its_step():
    session = Session(make_plan(steps=12))
    twin = MiniGPT(session.plan.model, seed=0)
    loader = RandomLoader(load_dataset()[0], 8, 42)
    for taken in range(12):
        twin.load_state_dict(session.model.state_dict())
        batch = loader.next()
        losses, mean = token_losses(twin(batch.inputs), batch.targets)
        row = record(session, until=taken + 1)
        assert row.column(col.TRAIN_LOSS)[0] == mean.item()
        real = losses.detach().numpy()[batch.targets.flatten().numpy() >= 0]
        assert row.records[0].arrays[col.TOKEN_LOSS].tolist() == real.tolist()
        assert row.column(col.BATCH_INDEX)[0] == taken
        assert row.column(col.STEP_COUNTER)[0] == taken + 1


@pytest.mark.parametrize("clip", [0.5, 3.0, None])
def test_clip_columns_follow_torchs_clip(clip):
    run = train(make_plan(steps=60, clip=clip))
    pre, post = run.column(col.GRAD_NORM_PRECLIP), run.column(col.GRAD_NORM_POSTCLIP)
    coefficient = run.column(col.CLIP_COEF)
    if clip is None:
        assert (coefficient == 1.0).all()
        assert post.tolist() == pre.tolist()
        return
    expected = []
    for norm in pre:
        parameter = torch.zeros(1)
        parameter.grad = torch.tensor([norm], dtype=torch.float32)
        clip_grad_norm_([parameter], clip)
        expected.append(parameter.grad.item() / norm)
    bound = pre > clip
    assert bound.any()
    assert bound.all() == (clip == 0.5)
    # Norm and coefficient are float32 in torch, the coefficient is in ours.
    assert coefficient == pytest.approx(expected, rel=3e-7)
    assert (coefficient[~bound] == 1.0).all()
    # The very norm in the record is what the clip used: equal to the last bit.
    used = (clip / (pre[bound] + 1e-6)).astype(np.float32)
    assert coefficient[bound].tolist() == used.tolist()
    assert post == pytest.approx(pre * coefficient, rel=3e-7)


def test_the_wall_time_is_that_of_the_step():
    session = Session(make_plan(steps=3))
    for row in session.records():
        wall = row.scalars[session.layout.scalars.index(col.TIME_WALL)]
        assert 0 <= time.time() - wall < 1
        time.sleep(0.01)


def test_close_leaves_the_model_without_hooks():
    session = Session(make_plan(steps=1))
    assert any(m._forward_hooks for m in session.model.modules())
    session.close()
    assert not any(m._forward_hooks for m in session.model.modules())
