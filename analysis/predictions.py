"""The lab's predictions, measured.

A prediction names a quantity and the range its maker expects. Here the quantity is
computed from the record of the run, its twin without the fault and, where the claim
compares, the run of injection A; what lies outside the range is "not confirmed".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.ema import ema
from analysis.history import RunHistory
from analysis.spikes import MAD_TO_SIGMA
from analysis.verification import brief
from minigpt.records import (
    GRAD_NORM_POSTCLIP,
    GRAD_NORM_PRECLIP,
    TRAIN_LOSS,
    InputError,
)

LOSS_WINDOW = 100  # steps before K whose median and MAD judge the loss at K
NORM_WINDOW = 50  # steps before K whose median is the norm's baseline
RECOVERED = 0.05  # nats of EMA-50 to the twin; the post-mortem's own tolerance
RISE_STEPS = 30  # how long after K injection C is said to show


@dataclass(frozen=True)
class Scene:
    """What a quantity may look at.

    Attributes:
        run: the run with the fault.
        twin: the same run without it.
        reference: the run of injection A, for claims that compare with it.
        step: K.
    """

    run: RunHistory
    twin: RunHistory
    reference: RunHistory
    step: int


@dataclass(frozen=True)
class Verdict:
    """One prediction beside what was measured.

    Attributes:
        id: of the prediction.
        claim: in words.
        expected: the range, in words.
        measured: the number; None if the quantity does not exist, see ``note``.
        confirmed: whether the number lies in the range.
        note: why there is no number.
    """

    id: str
    claim: str
    expected: str
    measured: float | None
    confirmed: bool
    note: str = ""


class _NotMeasured(Exception):
    """The quantity does not exist in this scene; says why."""


def loss_z_at_step(scene: Scene) -> float:
    """Robust z of the raw loss at K over the 100 steps before it."""
    loss, k = scene.run.scalar(TRAIN_LOSS), scene.step
    before = loss[max(0, k - LOSS_WINDOW) : k]
    if not len(before):
        raise _NotMeasured("no step before K to compare with")
    median = np.median(before)
    sigma = MAD_TO_SIGMA * np.median(np.abs(before - median))
    if not sigma > 0:
        raise _NotMeasured("the losses before K do not vary")
    return float((loss[k] - median) / sigma)


def preclip_ratio_at_step(scene: Scene) -> float:
    """Pre-clip norm at K over the median of the 50 steps before it."""
    return _norm_ratio(scene.run, scene.step)


def postclip_at_step(scene: Scene) -> float:
    """Post-clip norm at K."""
    return float(scene.run.scalar(GRAD_NORM_POSTCLIP)[scene.step])


def loss_excess_vs_scale(scene: Scene) -> float:
    """Loss over the twin at K, minus the same of injection A's run; nats."""
    run, twin, reference = (
        float(history.scalar(TRAIN_LOSS)[scene.step])
        for history in (scene.run, scene.twin, scene.reference)
    )
    return (run - twin) - (reference - twin)


def preclip_ratio_vs_scale(scene: Scene) -> float:
    """The norm ratio at K over the same of injection A's run."""
    reference = _norm_ratio(scene.reference, scene.step)
    if reference == 0:
        raise _NotMeasured("injection A left no gradient norm at K")
    return _norm_ratio(scene.run, scene.step) / reference


def ema_rise_30(scene: Scene) -> float:
    """Largest EMA-50 gap over the twin within the 30 steps after K; nats."""
    gap = _ema_gap(scene)
    return float(gap[scene.step + 1 : scene.step + 1 + RISE_STEPS].max())


def recovery_steps(scene: Scene) -> float:
    """Steps after K until the EMA-50 is back within 0.05 nats of the twin's.

    Infinite if it never came back, which it does not from NaN.
    """
    away = ~(np.abs(_ema_gap(scene)[scene.step :]) <= RECOVERED)
    if not away.any():
        raise _NotMeasured(
            f"no spike to recover from: the EMA never left +-{RECOVERED} of the twin"
        )
    left = int(np.argmax(away))
    back = np.flatnonzero(~away[left:])
    return float(left + back[0]) if back.size else math.inf


QUANTITIES: dict[str, Callable[[Scene], float]] = {
    function.__name__: function
    for function in (
        loss_z_at_step,
        preclip_ratio_at_step,
        postclip_at_step,
        recovery_steps,
        loss_excess_vs_scale,
        preclip_ratio_vs_scale,
        ema_rise_30,
    )
}


def judge(prediction: dict[str, Any], scene: Scene) -> Verdict:
    """Measure one prediction.

    Args:
        prediction: id, claim, quantity, low, high (None is open) and unit, as in
            the injection's YAML.
        scene: the runs.

    Raises:
        InputError: not a prediction, an unknown quantity, or a record that does not
            reach beyond K.
    """
    _check_prediction(prediction)
    for history in (scene.run, scene.twin, scene.reference):
        if len(history) <= scene.step + RISE_STEPS:
            raise InputError(
                f"run {history.name}: expected a record beyond step "
                f"{scene.step + RISE_STEPS}, found {len(history)} steps"
            )
    low, high = prediction["low"], prediction["high"]
    expected = _range(low, high, prediction["unit"])
    id_, claim = prediction["id"], prediction["claim"]
    try:
        value = QUANTITIES[prediction["quantity"]](scene)
    except _NotMeasured as reason:
        return Verdict(id_, claim, expected, None, False, str(reason))
    inside = (low is None or value >= low) and (high is None or value <= high)
    return Verdict(id_, claim, expected, value, bool(inside))


def _check_prediction(prediction: Any) -> None:
    if not isinstance(prediction, dict) or prediction.keys() != _KEYS.keys():
        raise InputError(
            f"prediction: expected the keys {', '.join(_KEYS)}; got {brief(prediction)}"
        )
    label = f"prediction {brief(prediction['id'])}"
    for key, kinds in _KEYS.items():
        value = prediction[key]
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise InputError(
                f"{label}: {key}: expected {'text' if kinds is str else 'a number'}, "
                f"got {value!r:.80}"
            )
    if prediction["quantity"] not in QUANTITIES:
        raise InputError(
            f"{label}: quantity: expected one of {', '.join(QUANTITIES)}; "
            f"got {prediction['quantity']!r}"
        )
    bounds = [prediction[key] for key in ("low", "high") if prediction[key] is not None]
    if not bounds or bounds != sorted(bounds):
        raise InputError(f"{label}: expected low <= high, or one of them; got {bounds}")


_NUMBER = (int, float, type(None))
_KEYS: dict[str, Any] = dict.fromkeys(("id", "claim", "quantity", "unit"), str)
_KEYS |= dict.fromkeys(("low", "high"), _NUMBER)


def _norm_ratio(run: RunHistory, k: int) -> float:
    norm = run.scalar(GRAD_NORM_PRECLIP)
    before = norm[max(0, k - NORM_WINDOW) : k]
    usual = float(np.median(before)) if len(before) else 0.0
    if usual == 0:
        raise _NotMeasured("no gradient norm before K to compare with")
    return float(norm[k]) / usual


def _ema_gap(scene: Scene) -> np.ndarray:
    run, twin = scene.run.scalar(TRAIN_LOSS), scene.twin.scalar(TRAIN_LOSS)
    shared = min(len(run), len(twin))
    return ema(run[:shared]) - ema(twin[:shared])


def _range(low: float | None, high: float | None, unit: str) -> str:
    if low is None:
        return f"<= {high:g} {unit}"
    return f">= {low:g} {unit}" if high is None else f"{low:g} to {high:g} {unit}"
