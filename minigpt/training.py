"""Training as a generator of step records: one consumer, one order.

The order of a step is the contract that dates a fault: the loss of step t is
taken before update t, so a fault in gradients or optimizer state at K cannot move
it before K + 1. Only data can.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from minigpt.batches import Batch, collate, load_dataset
from minigpt.flat import FlatParameters
from minigpt.flat_reader import FlatReader
from minigpt.injections import InjectionConfig, OptimizerState, build_injection
from minigpt.loaders import LoaderConfig, make_loader
from minigpt.model import MiniGPT, ModelConfig, token_losses
from minigpt.observer import CadenceConfig, Observer
from minigpt.optimizer import AdamWConfig, FlatAdamW
from minigpt.probes import future_leak, spectral_norms, validation_loss
from minigpt.records import (
    FUTURE_LEAK,
    SPECTRAL_NORM,
    VAL_LOSS,
    VAL_LOSS_CAUSAL,
    StepRecord,
)
from minigpt.schedule import ScheduleConfig, declared_lr
from minigpt.step_columns import StepColumns, StepFacts


@dataclass(kw_only=True)
class TrainingPlan:
    """All that determines a run's record, and nothing else.

    Attributes:
        seed: governs the initial weights.
        data_seed: governs the order of the rows.
        injection_step: K, the 0-based step of the fault.
        clip: largest global gradient norm; None clips nothing.
        steps: where the run stops; a run cut at n is a prefix of a longer one.
        threads: of torch; one keeps the bits equal from machine to machine.
    """

    model: ModelConfig
    optimizer: AdamWConfig
    schedule: ScheduleConfig
    loader: LoaderConfig
    injection: InjectionConfig
    cadence: CadenceConfig
    seed: int
    data_seed: int
    injection_step: int
    clip: float | None
    steps: int
    threads: int = 1


class Session:
    """A run's live parts between two steps.

    Args:
        plan: what to train.

    Raises:
        InputError: parts of the plan that do not fit the data or each other.

    Attributes:
        step: the next step to take.
        layout: columns of the records that ``records`` yields.
    """

    def __init__(self, plan: TrainingPlan) -> None:
        torch.set_num_threads(plan.threads)
        self.plan = plan
        self.step = 0
        train, validation = load_dataset()
        self._injection = build_injection(
            plan.injection, plan.injection_step, train, plan.loader.batch_size
        )
        self.loader = make_loader(
            plan.loader, train, plan.data_seed, self._injection.on_order
        )
        self.model = MiniGPT(plan.model, plan.seed)
        self.flat = FlatParameters(self.model)
        self._injection.check_tensors(self.flat.names)
        self.optimizer = FlatAdamW(self.flat, plan.optimizer)
        self._gradients = self.flat.views(self.flat.gradients)
        self._state = OptimizerState(
            self.flat.views(self.optimizer.exp_avg),
            self.flat.views(self.optimizer.exp_avg_sq),
        )
        self._matrices = {
            name: view
            for name, view in self.flat.views(self.flat.values).items()
            if view.dim() == 2
        }
        self._reader = FlatReader(self.flat, self.optimizer)
        self._observer = Observer(self.model, self._reader)
        self._columns = StepColumns(train.rare, self._observer.columns, self._matrices)
        self._validation = collate(0, validation.rows, validation.regular)
        shortest = int(self._validation.row_lengths[:2].min()) - 1
        self._probe = self._validation.inputs[:2, :shortest]  # without padding
        self.layout = self._columns.layout

    @property
    def sites(self) -> list[str]:
        """Names of the activation sites."""
        return self._observer.activations.sites

    def records(self, until: int | None = None) -> Iterator[StepRecord]:
        """Train and yield one record a step, a non-finite one too.

        Args:
            until: stop before this step; default the plan's ``steps``.
        """
        end = self.plan.steps if until is None else min(until, self.plan.steps)
        while self.step < end:
            yield self._take_step()

    def _take_step(self) -> StepRecord:
        t, facts = self.step, StepFacts()
        occasional = self._measure_occasional(t)
        batch = self._injection.on_batch(t, self.loader.next())
        losses = self._forward_backward(batch, facts)
        self._injection.on_gradients(t, self._gradients)
        self._clip(facts)
        facts.lr_declared = facts.lr = declared_lr(self.plan.schedule, t)
        self._observer.before_update()
        self.optimizer.step(facts.lr)
        self._injection.on_optimizer_state(t, self._state)
        facts.update = self._observer.after_update()
        facts.step_counter = self.optimizer.step_counter
        facts.param_hash = self._reader.parameter_hash()
        facts.wall = time.time()
        self.step = t + 1
        return self._columns.record(
            t, facts, batch, losses, self._observer.row(), occasional
        )

    def _forward_backward(self, batch: Batch, facts: StepFacts) -> np.ndarray:
        losses, loss = token_losses(self.model(batch.inputs), batch.targets)
        self.flat.gradients.zero_()
        loss.backward()
        facts.loss = loss.item()
        return losses.detach().numpy()

    def _clip(self, facts: StepFacts) -> None:
        """Scale gradients to the clip, as ``torch.nn.utils.clip_grad_norm_`` does.

        The recorded norm is the very number that the clip used.
        """
        norm = facts.norm_preclip = self._observer.after_backward()
        if not math.isfinite(norm):
            facts.nonfinite_grads = self._reader.nonfinite_gradients()
        if self.plan.clip is None:
            facts.norm_postclip = norm
            return
        coef = self.plan.clip / (norm + 1e-6)
        if coef >= 1.0:  # false for NaN, which then spreads as torch spreads it
            facts.norm_postclip = norm
            return
        facts.clip_coef = float(np.float32(coef))
        self.flat.gradients.mul_(facts.clip_coef)
        facts.norm_postclip = math.sqrt(self._reader.gradient_squares().sum())

    def _measure_occasional(self, t: int) -> dict[str, float]:
        """The cadence columns of step t, from the weights before its update."""
        cadence, found = self.plan.cadence, {}
        meter = self._observer.activations
        meter.enabled = False
        if cadence.validation and t % cadence.validation == 0:
            both = validation_loss(self.model, self._validation)
            found[VAL_LOSS], found[VAL_LOSS_CAUSAL] = both
        if cadence.probe and t % cadence.probe == 0:
            found[FUTURE_LEAK] = future_leak(self.model, self._probe)
        if cadence.spectral and t % cadence.spectral == 0:
            norms = spectral_norms(self._matrices)
            found |= {SPECTRAL_NORM + name: value for name, value in norms.items()}
        meter.enabled = True
        return found

    def resync(self) -> None:
        """Tell the observer that the parameters were replaced from outside."""
        self._observer.resync()

    def close(self) -> None:
        """Take the observer's hooks off the model."""
        self._observer.close()
