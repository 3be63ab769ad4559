"""Watched scripts: which update a logged value belongs to, and what its row says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from analysis.accounting import accounting_residual
from minigpt import records as col
from minigpt.records import InputError
from minigpt.watch import Watch
from runners.script.watched_rows import SCALARS
from tests.runners.scripts import (
    Loop,
    begin,
    bits,
    manifest_of,
    measured,
    record_of,
)

STEPS = 7


def reference(passes=1, **options):
    """What a plain loop with a bare Watch measures: losses and rows, step by step."""
    loop = Loop(**options)
    watch = Watch(loop.model, loop.optimizer)
    losses, tensors, figures, hashes = [], [], [], []
    for _ in range(STEPS):
        losses.append(loop.backward(passes))
        loop.optimizer.step()
        tensors.append(watch.row())
        hashes.append(watch.param_hash)
        figures.append(
            (
                watch.rate,
                watch.norm_preclip,
                watch.norm_postclip,
                watch.clip_coef,
                *watch.update,
                watch.step_counter,
                watch.nonfinite_grads,
            )
        )
    return losses, watch.columns, np.array(tensors), np.array(figures), hashes


def logged(root, order, passes=1, first=0, every=1, **options):
    """The record of a loop that logs before or after the update, or around both."""
    loop = Loop(**options)
    with begin(root) as run:
        run.watch(loop.model, loop.optimizer)
        for step in range(first, first + STEPS):
            loss = loop.backward(passes)
            due = (step + 1) % every == 0
            if due and order in ("before", "both"):
                run.log({"loss": loss}, step=step)
            loop.optimizer.step()
            if due and order in ("after", "both"):
                run.log({"loss" if order == "after" else "again": loss}, step=step)
    return record_of(run)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("order", ["before", "after", "both"])
@pytest.mark.parametrize("first", [0, 1, 1000])
def test_loss_and_update_of_a_step_are_in_one_row(tmp_path, order, passes, first):
    found = logged(tmp_path, order, passes, first)
    losses, columns, tensors, figures, hashes = reference(passes)
    assert found.steps.tolist() == list(range(first, first + STEPS))
    assert found.scalar("loss").tolist() == losses
    for place, name in enumerate(SCALARS):
        assert bits(found.scalar(name)) == bits(figures[:, place]), name
    for place, name in enumerate(columns):
        assert bits(found.data.flat[name]) == bits(tensors[:, place]), name
    assert found.integer(col.PARAM_HASH).tolist() == hashes
    assert found.scalar(col.STEP_SKIPPED).tolist() == [0.0] * STEPS


@pytest.mark.parametrize("order", ["before", "after"])
def test_rows_before_the_first_logged_step_are_numbered_back_from_it(tmp_path, order):
    found = logged(tmp_path, order, first=11, every=3)
    assert found.steps.tolist() == list(range(11, 11 + STEPS))
    losses, *_, hashes = reference()
    assert measured(found, "loss") == {11: losses[0], 14: losses[3], 17: losses[6]}
    assert found.integer(col.PARAM_HASH).tolist() == hashes


def test_steps_without_numbers_are_updates(tmp_path):
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        for step in range(STEPS):
            loss = loop.backward()
            run.log({"loss": loss})
            loop.optimizer.step()
            if step % 2:
                run.log({"odd": step})
    found = record_of(run)
    assert found.steps.tolist() == list(range(STEPS))
    assert found.scalar("loss").tolist() == reference()[0]
    assert measured(found, "odd") == {1: 1, 3: 3, 5: 5}


def test_a_run_that_logs_nothing_has_a_row_an_update(tmp_path):
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        for _ in range(3):
            loop.backward()
            loop.optimizer.step()
    assert record_of(run).steps.tolist() == [0, 1, 2]


def test_a_step_below_the_updates_made_is_refused(tmp_path):
    loop = Loop()
    run = begin(tmp_path)
    run.watch(loop.model, loop.optimizer)
    for _ in range(5):
        loop.backward()
        loop.optimizer.step()
    with pytest.raises(InputError, match="expected 4 or more, got 0; with watch"):
        run.log({"loss": 1.0}, step=0)
    run.log({"loss": 1.0}, step=4)
    loop.backward()
    with pytest.raises(InputError, match="expected 5 or more, got 4; with watch"):
        run.log({"loss": 1.0}, step=4)
    loop.optimizer.step()
    run.finish()
    assert record_of(run).steps.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_step_may_run_ahead(tmp_path):
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        for step in (0, 1, 10, 11):
            loss = loop.backward()
            loop.optimizer.step()
            run.log({"loss": loss}, step=step)
    found = record_of(run)
    assert found.steps.tolist() == [0, 1, 10, 11]
    assert found.scalar("loss").tolist() == reference()[0][:4]


def test_a_value_of_the_next_step_waits_for_it(tmp_path):
    """An evaluation after step t that is logged as t + 1, and one after the last."""
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        for step in range(4):
            loss = loop.backward()
            loop.optimizer.step()
            run.log({"loss": loss}, step=step)
            if step % 2:
                run.log({"val_loss": step}, step=step + 1)
    found = record_of(run)
    assert found.steps.tolist() == [0, 1, 2, 3, 4]
    assert measured(found, "loss") == dict(enumerate(reference()[0][:4]))
    assert measured(found, "val_loss") == {2: 1, 4: 3}
    assert found.scalar(col.STEP_SKIPPED).tolist() == [0, 0, 0, 0, 1]
    assert not found.measured(col.GRAD_NORM_PRECLIP)[4]
    assert not found.measured(col.GRAD_NORM + "0.weight")[4]
    moments = found.scalar(col.EXP_AVG_SQ_SUM + "0.weight")
    assert moments[4] == moments[3] != moments[2]


def test_a_value_before_the_first_pass_has_a_row_of_its_own_if_its_step_is_lower(
    tmp_path,
):
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        run.log({"val_loss": 9.0}, step=0)
        for step in (1, 2):
            loss = loop.backward()
            loop.optimizer.step()
            run.log({"loss": loss}, step=step)
    found = record_of(run)
    assert found.steps.tolist() == [0, 1, 2]
    assert found.scalar(col.STEP_SKIPPED).tolist() == [1, 0, 0]
    assert measured(found, "loss") == dict(enumerate(reference()[0][:2], 1))
    residual = accounting_residual(found).residual
    assert np.nanmax(residual[2]) < 1e-6


def test_micro_batches_that_are_logged_as_steps_leave_the_update_where_it_was(tmp_path):
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        for step in range(6):
            loss = loop.loss()
            loss.backward()
            run.log({"loss": loss}, step=step)
            if step % 3 == 2:
                loop.optimizer.step()
                loop.optimizer.zero_grad()
    found = record_of(run)
    assert found.steps.tolist() == list(range(6))
    assert found.scalar(col.STEP_SKIPPED).tolist() == [1, 1, 0, 1, 1, 0]
    assert not np.isnan(found.scalar("loss")).any()


def test_validation_begins_no_cycle(tmp_path):
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        for step in range(3):
            loss = loop.backward()
            loop.optimizer.step()
            loop.model.eval()
            loop.loss()  # with gradients, as many forget to switch them off
            loop.model.train()
            with torch.no_grad():
                loop.loss()
            run.log({"loss": loss}, step=step)
    assert record_of(run).steps.tolist() == [0, 1, 2]
    assert record_of(run).scalar(col.STEP_SKIPPED).tolist() == [0, 0, 0]


def test_a_closure_is_one_update(tmp_path):
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        for step in range(STEPS):
            losses = []
            loop.optimizer.step(lambda seen=losses: seen.append(loop.backward()))
            run.log({"loss": losses[0]}, step=step)
    found, expected = record_of(run), reference()
    assert found.scalar("loss").tolist() == expected[0]
    assert found.integer(col.PARAM_HASH).tolist() == expected[4]
    for place, name in enumerate(SCALARS):
        assert bits(found.scalar(name)) == bits(expected[3][:, place]), name


def test_the_learning_rate_is_that_of_the_update(tmp_path):
    loop = Loop()
    scheduler = torch.optim.lr_scheduler.StepLR(loop.optimizer, 1, gamma=0.5)
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        for step in range(3):
            loop.backward()
            loop.optimizer.step()
            scheduler.step()
            run.log({"lr": scheduler.get_last_lr()[0]}, step=step)
    found = record_of(run)
    assert found.scalar(col.LR).tolist() == [0.01, 0.005, 0.0025]
    assert found.scalar("lr").tolist() == [0.005, 0.0025, 0.00125]


@pytest.mark.parametrize(
    ("optimizer", "options", "judged"),
    [
        (torch.optim.AdamW, {"weight_decay": 0.1}, True),
        (torch.optim.Adam, {}, True),
        (torch.optim.Adam, {"weight_decay": 0.1}, False),
        (torch.optim.SGD, {}, False),
    ],
)
def test_the_optimizer_is_accounted_for(tmp_path, optimizer, options, judged):
    found = logged(tmp_path, "after", optimizer=optimizer, **options)
    result = accounting_residual(found)
    assert bool(result.not_applicable) != judged
    if judged:
        assert np.nanmax(result.residual) < 1e-6
        assert not np.isnan(result.residual).any()


def test_gradients_that_are_scaled_one_by_one_raise_no_alarm(tmp_path):
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        for _ in range(4):
            loop.backward()
            nn.utils.clip_grad_value_(loop.model.parameters(), 0.01)
            loop.optimizer.step()
            run.log({})
    found = record_of(run)
    assert np.isnan(found.scalar(col.CLIP_COEF)).all()
    assert np.isnan(accounting_residual(found).residual).all()


def test_the_facts_are_in_the_manifest_before_the_first_step(tmp_path):
    loop = Loop(betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2)
    run = begin(tmp_path)
    run.watch(loop.model, loop.optimizer)
    facts = manifest_of(run)["facts"]
    assert facts["optimizer"] == {
        "kind": "adamw",
        "beta1": 0.8,
        "beta2": 0.9,
        "eps": 1e-6,
        "weight_decay": 0.2,
    }
    assert facts["tensors"]["0.weight"] == {"shape": [8, 5]}
    assert facts["sites"] == ["0", "1", "2"]
    assert "clip" not in facts
    run.finish()


def test_what_groups_of_parameters_do_not_agree_on_is_not_said(tmp_path):
    model = nn.Linear(2, 2)
    groups = [
        {"params": [model.weight], "betas": (0.9, 0.95)},
        {"params": [model.bias], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1)
    run = begin(tmp_path)
    run.watch(model, optimizer)
    assert manifest_of(run)["facts"]["optimizer"] == {"kind": "adamw", "eps": 1e-8}
    run.finish()


def test_watch_comes_before_the_first_step_and_once(tmp_path):
    loop = Loop()
    run = begin(tmp_path)
    run.watch(loop.model, loop.optimizer)
    with pytest.raises(InputError, match="a model is watched already"):
        run.watch(loop.model, loop.optimizer)
    run.finish()
    later = begin(tmp_path, name="later")
    later.log({"loss": 1.0})
    with pytest.raises(InputError, match="values were logged already"):
        later.watch(loop.model, loop.optimizer)
    later.finish()


@pytest.mark.parametrize("wrong", ["model", "optimizer"])
def test_only_a_module_and_its_optimizer_are_watched(tmp_path, wrong):
    loop = Loop()
    given = {"model": loop.model, "optimizer": loop.optimizer} | {wrong: object()}
    run = begin(tmp_path)
    with pytest.raises(InputError, match=f"watch: {wrong}: expected a torch"):
        run.watch(**given)
    run.finish()


def test_a_column_of_the_observer_is_no_key(tmp_path):
    loop = Loop()
    run = begin(tmp_path)
    run.watch(loop.model, loop.optimizer)
    for key in (col.GRAD_NORM_PRECLIP, col.GRAD_NORM + "0.weight", col.STEP_SKIPPED):
        with pytest.raises(InputError, match="watch\\(\\) records a column"):
            run.log({key: 1.0})
    run.finish()


def test_a_finished_run_leaves_no_hook_behind(tmp_path):
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
    assert not loop.model._forward_hooks
    assert not loop.optimizer._optimizer_step_pre_hooks
    assert not loop.optimizer._optimizer_step_post_hooks


def test_gradients_of_another_way_through_the_model_are_not_those_of_before(
    tmp_path, capsys
):
    """The second update comes from a part of the model that is called by itself."""
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        loop.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop.model[0](torch.ones(1, 5)).sum().backward()
        loop.optimizer.step()
    found = record_of(run)
    assert math.isnan(found.scalar(col.GRAD_NORM_PRECLIP)[1])
    assert math.isnan(found.scalar(col.GRAD_NORM + "0.weight")[1])
    assert found.scalar(col.GRAD_NORM_POSTCLIP)[1] > 0
    assert "no backward pass through the model" in capsys.readouterr().err
