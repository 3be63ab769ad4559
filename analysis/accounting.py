"""Optimizer accounting: does the optimizer's state follow from the gradients?

For Adam the sum of the second moment obeys, tensor by tensor and exactly up to
rounding,

    S_t = beta2 * S_(t-1) + (1 - beta2) * ||g_t||^2        S_(-1) = 0

with g after clipping. A state that was multiplied, lost or restored breaks this at
one step and in the tensors concerned, though no other curve may show it. For the
first moment only a bound follows, from the triangle inequality:

    | ||m_t|| - beta1 * ||m_(t-1)|| | <= (1 - beta1) * ||g_t||

At a skipped step the optimizer does nothing and both states must stand still.

Reference:
    Kingma and Ba (2015), "Adam: a method for stochastic optimization", algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.history import RunHistory
from minigpt.records import (
    CLIP_COEF,
    EXP_AVG_NORM,
    EXP_AVG_SQ_SUM,
    GRAD_NORM,
    STEP_COUNTER,
    STEP_SKIPPED,
)

# Below this the float32 elements of v (sum S) or m are subnormal or 0 and follow no
# law to six digits; both sides of an equation below it count as equal.
NEGLIGIBLE_SQ_SUM = 1e-30
NEGLIGIBLE_NORM = 1e-30


@dataclass(frozen=True, eq=False)
class AccountingResult:
    """The residuals of one run.

    Attributes:
        tensors: parameter tensors, in the order of the record; the last axis below.
        residual: float64, shape (n, tensors): |actual - expected| / actual of S. It
            is below 1e-6 in health, 0.99 where v was multiplied by 100, inf where S
            is 0 and should not be, NaN where a quantity is not finite, where the
            tensor is not applicable, and at a first row before which the optimizer
            had stepped.
        nonfinite: int64, shape (tensors,): steps of an applicable tensor at which a
            quantity is not finite.
        not_applicable: tensor -> why its second moment cannot be judged.
        first_moment_excess: float64, shape (n, tensors): by how much the bound on m
            is exceeded, as a part of the largest term in it, 0 to 1; NaN as above.
        first_moment_not_applicable: tensor -> why the first moment cannot be judged.
    """

    tensors: list[str]
    residual: np.ndarray
    nonfinite: np.ndarray
    not_applicable: dict[str, str]
    first_moment_excess: np.ndarray
    first_moment_not_applicable: dict[str, str]


def accounting_residual(history: RunHistory) -> AccountingResult:
    """Hold every tensor's optimizer state of a run against its gradients.

    Raises nothing: what cannot be judged is named with its reason in the result.
    """
    tensors = history.tensors
    shape = (len(history), len(tensors))
    residual, excess = np.full(shape, np.nan), np.full(shape, np.nan)
    nonfinite = np.zeros(len(tensors), np.int64)
    refused_first = {}
    frozen, unstarted = _frozen_steps(history), _unstarted(history)
    refused = not_applicable(history)
    of_the_run = _run_reason(history)
    for index, name in enumerate(tensors):
        common = of_the_run or _gradient_reason(history, name)
        if name not in refused:
            column = _residual(history, name, frozen)
            nonfinite[index] = np.isnan(column).sum()
            residual[:, index] = column
        if reason := common or _state_reason(history, EXP_AVG_NORM + name, "beta1"):
            refused_first[name] = reason
        else:
            excess[:, index] = _excess(history, name, frozen)
    if unstarted:
        residual[0], excess[0] = np.nan, np.nan
    return AccountingResult(
        tensors, residual, nonfinite, refused, excess, refused_first
    )


def not_applicable(history: RunHistory) -> dict[str, str]:
    """Tensors whose second moment cannot be judged, and why."""
    of_the_run, refused = _run_reason(history), {}
    for name in history.tensors:
        reason = of_the_run or _gradient_reason(history, name)
        reason = reason or _state_reason(history, EXP_AVG_SQ_SUM + name, "beta2")
        if reason:
            refused[name] = reason
    return refused


def _residual(history: RunHistory, tensor: str, frozen: np.ndarray) -> np.ndarray:
    actual, beta2 = history.scalar(EXP_AVG_SQ_SUM + tensor), history.facts.beta2
    before, grad = _previous(actual), _clipped_norm(history, tensor)
    with np.errstate(all="ignore"):
        updated = beta2 * before + (1 - beta2) * grad**2
        expected = np.where(frozen, before, updated)
        residual = np.abs(actual - expected) / np.abs(actual)
    negligible = (np.abs(actual) < NEGLIGIBLE_SQ_SUM) & (expected < NEGLIGIBLE_SQ_SUM)
    residual[negligible] = 0.0
    residual[~(np.isfinite(actual) & np.isfinite(expected))] = np.nan
    return residual


def _excess(history: RunHistory, tensor: str, frozen: np.ndarray) -> np.ndarray:
    norm, beta1 = history.scalar(EXP_AVG_NORM + tensor), history.facts.beta1
    grad = _clipped_norm(history, tensor)
    with np.errstate(all="ignore"):
        kept = np.where(frozen, 1.0, beta1) * _previous(norm)
        added = np.where(frozen, 0.0, (1 - beta1) * grad)
        beyond = np.maximum(np.abs(norm - kept) - added, 0.0)
        largest = np.maximum(np.maximum(norm, kept), added)
        excess = beyond / largest
    excess[largest < NEGLIGIBLE_NORM] = 0.0
    excess[~(np.isfinite(norm) & np.isfinite(kept) & np.isfinite(added))] = np.nan
    return excess


def _unstarted(history: RunHistory) -> bool:
    """Whether the state before the first row may be another than zero.

    The optimizer's own count tells it from where there is one: somebody's run may
    begin at step 1, or at step 0 with an optimizer that was loaded.
    """
    if history.has(STEP_COUNTER) and len(history):
        count = history.scalar(STEP_COUNTER)[0]
        if np.isfinite(count):
            return bool(count > 1)
    return bool((history.steps[:1] != 0).any())


def _previous(state: np.ndarray) -> np.ndarray:
    """The state one step earlier; 0 before the first step."""
    return np.concatenate([np.zeros(min(1, len(state))), state[:-1]])


def _frozen_steps(history: RunHistory) -> np.ndarray:
    if not history.has(STEP_SKIPPED):
        return np.zeros(len(history), bool)
    return history.scalar(STEP_SKIPPED) == 1


def _clipped_norm(history: RunHistory, tensor: str) -> np.ndarray:
    norm = history.scalar(GRAD_NORM + tensor)
    if not history.has(CLIP_COEF):
        return norm
    with np.errstate(all="ignore"):  # an infinite norm has the coefficient 0
        return norm * history.scalar(CLIP_COEF)


def _run_reason(history: RunHistory) -> str:
    facts = history.facts
    if not len(history):
        return "the record has no steps"
    if np.any(np.diff(history.steps) != 1):
        return "the record does not hold every step"
    if facts.optimizer is None:
        return "the manifest does not name the optimizer"
    if facts.optimizer not in ("adam", "adamw"):
        return f"the optimizer is {facts.optimizer}, not adam or adamw"
    if facts.optimizer == "adam" and facts.weight_decay != 0:
        return "adam may add weight decay to the gradient after it was measured"
    unclipped = facts.clip is None and "clip" not in facts.unknown
    if not (unclipped or history.has(CLIP_COEF)):
        return f"column {CLIP_COEF} is missing"
    return ""


def _gradient_reason(history: RunHistory, tensor: str) -> str:
    column = GRAD_NORM + tensor
    if not history.has(column):
        return f"column {column} is missing"
    norm = history.scalar(column)
    if np.all((norm == 0) | np.isnan(norm)):
        return "no gradient: its norm is 0 or NaN at every step"
    return ""


def _state_reason(history: RunHistory, column: str, beta: str) -> str:
    if not history.has(column):
        return f"column {column} is missing"
    if getattr(history.facts, beta) is None:
        return f"the manifest does not say {beta}"
    return ""
