"""The panels: which question each asks, and what a reader should conclude from it."""

from __future__ import annotations

import numpy as np

from analysis.accounting import accounting_residual, not_applicable
from analysis.dashboard.lines import (
    Absent,
    Chart,
    Line,
    Panel,
    column,
    columns,
    family,
    liveliest,
    loss_lines,
    per_tensor,
)
from analysis.history import RunHistory
from minigpt import records as col

RESIDUAL_FLOOR = 1e-9  # residuals are rounding below 1e-6; 0 has no logarithm


def _schedule(run: RunHistory) -> list[Line]:
    named = [(col.LR, "used"), (col.LR_DECLARED, "declared")]
    return columns(run, named, dashed=("declared",))


def _norms(run: RunHistory) -> list[Line]:
    named = [(col.GRAD_NORM_PRECLIP, "pre-clip"), (col.GRAD_NORM_POSTCLIP, "post-clip")]
    return columns(run, named, dashed=("post-clip",))


def _clip_ruler(run: RunHistory) -> list[float]:
    return [] if run.facts.clip is None else [run.facts.clip]


def _clipped_share(run: RunHistory) -> str:
    if not run.has(col.CLIP_COEF) or not len(run):
        return f"Share of clipped steps: unknown, the record has no {col.CLIP_COEF}."
    clipped = int((run.scalar(col.CLIP_COEF) < 1).sum())
    told = f"Clipped in {clipped:,} of {len(run):,} steps ({clipped / len(run):.1%})"
    clip = run.facts.clip
    return f"{told}." if clip is None else f"{told}; dotted, the clip of {clip:g}."


def _validation_note(run: RunHistory) -> str:
    missing = [
        name
        for name in (col.VAL_LOSS, col.VAL_LOSS_CAUSAL)
        if not run.has(name) or not run.measured(name).any()
    ]
    return f"Not recorded: {', '.join(missing)}." if missing else ""


def _update_ratios(run: RunHistory) -> list[Line]:
    prefixes = (col.TENSOR_UPDATE_NORM, col.TENSOR_PARAM_NORM)
    return per_tensor(run, prefixes, np.divide)


def _balance(run: RunHistory) -> list[Line]:
    if not run.has(col.GRAD_NORM_PRECLIP):
        raise Absent(f"the record has no column {col.GRAD_NORM_PRECLIP}")
    return per_tensor(run, (col.GRAD_NORM,), np.divide, (col.GRAD_NORM_PRECLIP,))


def _classes(run: RunHistory) -> list[Line]:
    named = [(col.LOSS_REGULAR, "regular verbs"), (col.LOSS_IRREGULAR, "irregular")]
    return columns(run, named)


def _residuals(run: RunHistory) -> list[Line]:
    found = accounting_residual(run)
    lines = []
    for index, tensor in enumerate(found.tensors):
        values = found.residual[:, index]
        # A script may scale its gradients in ways that no residual can be told from.
        rows = np.flatnonzero(~np.isnan(values)) if run.logged else np.arange(len(run))
        if tensor not in found.not_applicable and len(rows):
            lines.append(Line(tensor, rows, values[rows]))
    if not lines:
        reasons = set(found.not_applicable.values())
        reasons = reasons or {_nothing_to_account(found.tensors)}
        raise Absent("; ".join(sorted(reasons)))
    return liveliest(lines)


def _nothing_to_account(tensors: list[str]) -> str:
    if not tensors:
        return "no tensor in the record"
    return (
        "no two updates in a row whose gradients were clipped as a whole or not at all"
    )


def _residual_note(run: RunHistory) -> str:
    named = [f"{name} ({why})" for name, why in not_applicable(run).items()]
    if not named:
        return ""
    more = f" and {len(named) - 4} more" if len(named) > 4 else ""
    return f"Not applicable: {', '.join(named[:4])}{more}."


PANELS = (
    Panel(
        "1",
        "Loss",
        "The loss of a step is taken before its update: only the step's data can move "
        "it there, and what an update broke shows one step later at the earliest.",
        (
            Chart(
                "loss",
                "Training and validation loss",
                "nats per token",
                loss_lines,
                "log",
                alone=("train", "EMA-50", "val"),
                note=_validation_note,
            ),
        ),
    ),
    Panel(
        "2",
        "Learning rate",
        "The rate used lies on the declared schedule. Where they part, the scheduler "
        "is at fault and not the model.",
        (Chart("lr", "Used and declared", "1", _schedule, alone=("used",)),),
    ),
    Panel(
        "3",
        "Gradient norm",
        "A single tall step before clipping is a scaled gradient or an odd batch; "
        "after clipping, it says how much of it reached the optimizer.",
        (
            Chart(
                "norm",
                "Before and after clipping",
                "global L2 norm",
                _norms,
                "log",
                alone=("pre-clip", "post-clip"),
                rulers=_clip_ruler,
                note=_clipped_share,
            ),
        ),
    ),
    Panel(
        "4",
        "Activations",
        "The site that leaves its level first is where the damage sits. Beyond 65,504 "
        "nothing fits into float16.",
        (
            Chart(
                "act_mean",
                "Mean size",
                "mean |a|",
                lambda run: family(run, col.ACT_MEAN_ABS),
                "log",
            ),
            Chart(
                "act_max",
                "Largest",
                "max |a|",
                lambda run: family(run, col.ACT_MAX_ABS),
                "log",
            ),
        ),
    ),
    Panel(
        "5",
        "Spectral norms",
        "Slow growth is learning. A jump between two measurements is weights that were "
        "thrown, and a matrix far above the others was initialised so.",
        (
            Chart(
                "spectral",
                "Largest singular value of each matrix",
                "sigma 1",
                lambda run: family(run, col.SPECTRAL_NORM),
                "log",
            ),
        ),
    ),
    Panel(
        "6",
        "Updates and gradient balance",
        "All ratios move together with the learning rate and the clip. One tensor that "
        "moves alone has a damaged optimizer state. Gradients that are scaled as a "
        "whole leave the balance as it is.",
        (
            Chart(
                "ratio",
                "Update ratio of each tensor",
                "|update| / |weights|",
                _update_ratios,
                "log",
                1e-9,
            ),
            Chart(
                "balance",
                "Each tensor's part of the gradient",
                "norm / global norm",
                _balance,
                "log",
                1e-6,
            ),
        ),
    ),
    Panel(
        "7",
        "Token losses",
        "A few tokens far above the rest are rare or mislabelled ones, and a whole "
        "column that moves up is a model that was damaged.",
        (
            Chart(
                "histogram",
                "How many tokens have which loss",
                "nats",
                lambda run: [column(run, col.TOKEN_LOSS_P99, "99th percentile")],
                alone=("99th percentile",),
            ),
            Chart(
                "classes",
                "Loss of regular and irregular verbs",
                "nats per token",
                _classes,
                "log",
                alone=("regular verbs", "irregular"),
            ),
        ),
    ),
    Panel(
        "M",
        "Optimizer moments",
        "The residual says how far exp_avg_sq is from what the gradients make of it: "
        "below 1e-6 in health. A step above belongs to a state that was changed by "
        "something other than the optimizer.",
        (
            Chart(
                "second",
                "Second moment of each tensor",
                "sum of exp_avg_sq",
                lambda run: family(run, col.EXP_AVG_SQ_SUM),
                "log",
                1e-30,
            ),
            Chart(
                "first",
                "First moment of each tensor",
                "L2 of exp_avg",
                lambda run: family(run, col.EXP_AVG_NORM),
                "log",
                1e-20,
            ),
            Chart(
                "residual",
                "Accounting residual of each tensor",
                "relative",
                _residuals,
                "log",
                RESIDUAL_FLOOR,
                (RESIDUAL_FLOOR, 1.0),
                note=_residual_note,
            ),
        ),
    ),
    Panel(
        "B",
        "Batch log",
        "What the model was shown. Rows that repeat each other or one rare token many "
        "times over are an odd batch, whatever the loss says.",
        (
            Chart(
                "duplicates",
                "Rows that equal another of their batch",
                "count",
                lambda run: [column(run, col.DUPLICATE_ROWS, "rows")],
                alone=("rows",),
            ),
            Chart(
                "rare",
                "How often the commonest rare token occurs in a batch",
                "count",
                lambda run: [column(run, col.RARE_TOKEN_MAX_COUNT, "times")],
                alone=("times",),
            ),
        ),
    ),
)
