"""Steps of a record that a reader should look at, and what is odd about each.

Two kinds of evidence flag a step: loss or gradient norm leaving their baseline (the
step detector of ``analysis.spikes``), and a broken law that holds exactly in health:
the optimizer accounting, the declared learning rate, batches without a row twice. A
flag says what was seen. It names no cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.accounting import accounting_residual
from analysis.history import RunHistory
from analysis.marks import find_marks
from analysis.rule import DEFAULT_RULE, RuleParameters
from analysis.spikes import Mark, Onsets
from minigpt import records as col

# Float32 sums leave 1e-6 in health; a state that was changed at all leaves far more.
RESIDUAL_LIMIT = 1e-3
LR_TOLERANCE = 1e-6  # relative, of a rate that went through float32
# Rows twice are odd in a run only if they are rare in it.
DUPLICATES_RARE = 0.01

LOSS, NORM, NONFINITE = "loss", "gradient norm", "non-finite"
ACCOUNTING, RATE, BATCH = "optimizer accounting", "learning rate", "batch"
_KINDS = {  # of a mark's reasons
    "nonfinite_loss": NONFINITE,
    "nonfinite_norm": NONFINITE,
    "loss": LOSS,
    "norm": NORM,
}


@dataclass(frozen=True)
class Flag:
    """A step to look at.

    Attributes:
        step: which.
        kinds: what is odd, of LOSS, NORM, NONFINITE, ACCOUNTING, RATE, BATCH.
        texts: the same in words with its numbers, one for each entry of ``kinds``.
    """

    step: int
    kinds: tuple[str, ...]
    texts: tuple[str, ...]


def find_flags(history: RunHistory, rule: RuleParameters = DEFAULT_RULE) -> list[Flag]:
    """The first step of everything odd in a run, in the order of the steps.

    Odd steps that follow within ``rule.quiet`` steps of one of the same kind belong
    to it and are not flagged again: a run that stays NaN has one flag for it.
    """
    found: dict[int, list[tuple[str, str]]] = {}
    for finder in (_marks, _accounting, _rate, _batch):
        for step, kind, text in finder(history, rule):
            found.setdefault(step, []).append((kind, text))
    return [
        Flag(step, *map(tuple, zip(*seen, strict=True)))
        for step, seen in sorted(found.items())
    ]


_Odd = tuple[int, str, str]


def _marks(history: RunHistory, rule: RuleParameters) -> list[_Odd]:
    loss, loss_rows = _recorded(history, col.TRAIN_LOSS)
    norm, norm_rows = _recorded(history, col.GRAD_NORM_PRECLIP)
    onsets = {kind: Onsets(rule) for kind in (LOSS, NORM, NONFINITE)}
    odd: list[_Odd] = []
    found = find_marks(loss, norm, history.steps, rule, loss_rows, norm_rows)
    for mark in found:
        kinds = {_KINDS[reason] for reason in mark.reasons}
        begun = {kind for kind in kinds if onsets[kind].is_onset(mark)}
        row = int(np.searchsorted(history.steps, mark.step))
        for kind, text in _of_mark(mark, loss[row], norm[row]):
            odd += [(mark.step, kind, text)] if kind in begun else []
    return odd


def _recorded(history: RunHistory, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A column and the rows where it was measured; NaN and none without it."""
    if history.has(name):
        return history.scalar(name), history.measured(name)
    return np.full(len(history), np.nan), np.zeros(len(history), bool)


def _of_mark(mark: Mark, loss: float, norm: float) -> list[tuple[str, str]]:
    texts = {
        "nonfinite_loss": f"the loss is {loss}",
        "nonfinite_norm": f"the gradient norm is {norm}",
        "loss": f"loss {loss:.4g}, robust z {mark.loss_z or 0:.1f}",
        "norm": f"gradient norm {norm:.4g}, robust z {mark.norm_z or 0:.1f}",
    }
    return [(_KINDS[reason], texts[reason]) for reason in mark.reasons]


def _accounting(history: RunHistory, rule: RuleParameters) -> list[_Odd]:
    found = accounting_residual(history)
    if not found.tensors:
        return []
    residual = np.nan_to_num(found.residual, nan=0.0, posinf=np.inf)
    odd = []
    broken_at = residual.max(axis=1, initial=0) > RESIDUAL_LIMIT
    for row in _firsts(broken_at, history.steps, rule):
        broken = np.flatnonzero(residual[row] > RESIDUAL_LIMIT)
        worst = int(residual[row].argmax())
        text = (
            f"exp_avg_sq does not follow from the gradients: residual "
            f"{residual[row, worst]:.3g} at {found.tensors[worst]}"
        )
        if len(broken) > 1:
            text += f" and in {len(broken) - 1} more"
        odd.append((int(history.steps[row]), ACCOUNTING, text))
    return odd


def _rate(history: RunHistory, rule: RuleParameters) -> list[_Odd]:
    if not (history.has(col.LR) and history.has(col.LR_DECLARED)):
        return []
    used, declared = history.scalar(col.LR), history.scalar(col.LR_DECLARED)
    with np.errstate(invalid="ignore"):  # inf - inf
        close = np.abs(used - declared) <= LR_TOLERANCE * np.abs(declared)
    # A NaN is close to nothing; where none is declared there is nothing to miss.
    off = ~(close | (used == declared) | np.isnan(declared))
    return [
        (
            int(history.steps[row]),
            RATE,
            f"learning rate {used[row]:.3g}, declared {declared[row]:.3g}",
        )
        for row in _firsts(off, history.steps, rule)
    ]


def _batch(history: RunHistory, rule: RuleParameters) -> list[_Odd]:
    if not history.has(col.DUPLICATE_ROWS):
        return []
    doubles = history.scalar(col.DUPLICATE_ROWS)
    odd = doubles > 0
    if not len(odd) or odd.mean() > max(DUPLICATES_RARE, 1 / len(odd)):
        return []
    return [
        (
            int(history.steps[row]),
            BATCH,
            f"{doubles[row]:.0f} rows of the batch equal another of its rows",
        )
        for row in _firsts(odd, history.steps, rule)
    ]


def _firsts(odd: np.ndarray, steps: np.ndarray, rule: RuleParameters) -> list[int]:
    """Rows that begin an event: no odd one in the ``quiet`` steps before."""
    rows = np.flatnonzero(odd)
    begins = np.ones(len(rows), bool)
    begins[1:] = np.diff(steps[rows]) > rule.quiet
    return rows[begins].tolist()
