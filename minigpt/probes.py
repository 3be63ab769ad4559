"""Measurements too dear for every step: validation, leak probe, spectral norms."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from minigpt.batches import Batch
from minigpt.model import MiniGPT, token_losses

EXACT_UP_TO = 512  # smaller side of a matrix; above it the norm is iterated


@torch.no_grad()
def validation_loss(model: MiniGPT, batch: Batch) -> tuple[float, float]:
    """Loss on held-out rows, as the model is and with the causal mask restored.

    Returns:
        Two losses in nats per token. While the model is causal the second is the
        first, as both would be the same computation.
    """
    as_trained = token_losses(model(batch.inputs), batch.targets)[1].item()
    if model.causal:
        return as_trained, as_trained
    masks = [block.attn.causal for block in model.blocks]
    try:
        for block in model.blocks:
            block.attn.causal = True
        restored = token_losses(model(batch.inputs), batch.targets)[1].item()
    finally:
        for block, mask in zip(model.blocks, masks, strict=True):
            block.attn.causal = mask
    return as_trained, restored


@torch.no_grad()
def future_leak(model: torch.nn.Module, tokens: Tensor) -> float:
    """Largest change of a logit at t when a later token changes.

    Args:
        model: token ids (B, T) -> logits (B, T, V).
        tokens: (B, T) with T >= 2; the last column is changed to another id.

    Returns:
        The largest absolute change over the first T - 1 positions, in nats;
        exactly 0 for a causal model, NaN if a logit is NaN.
    """
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] == 0).long()  # id 0, or 1 where it was 0
    before, after = model(tokens)[:, :-1], model(changed)[:, :-1]
    return (before - after).abs().max().item()


@torch.no_grad()
def spectral_norms(matrices: Mapping[str, Tensor]) -> dict[str, float]:
    """Largest singular value of each matrix.

    Exact from the Gram matrix in float64 where the smaller side is at most
    ``EXACT_UP_TO``, else by power iteration from a fixed start. Nothing is kept
    between calls, so a resumed run measures the same bits.

    Args:
        matrices: name -> two-dimensional tensor.

    Returns:
        name -> sigma_1; NaN if the matrix holds a NaN or an infinity.
    """
    return {name: _spectral_norm(m.double()) for name, m in matrices.items()}


def _spectral_norm(matrix: Tensor) -> float:
    if not matrix.isfinite().all():
        return float("nan")
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    if matrix.shape[0] > EXACT_UP_TO:
        return power_iteration(matrix)
    return torch.linalg.eigvalsh(matrix @ matrix.T)[-1].clamp(min=0).sqrt().item()


def power_iteration(matrix: Tensor, iterations: int = 100) -> float:
    """sigma_1 from below: ``v <- M^T M v / |.|``, then ``|M v|``.

    Args:
        matrix: float64, shape (m, n).
        iterations: the relative error falls as (sigma_2 / sigma_1)^(4 x this).

    Reference:
        Golub and Van Loan, "Matrix Computations", section 8.2.
    """
    start = torch.Generator().manual_seed(0)
    v = torch.randn(matrix.shape[1], generator=start, dtype=matrix.dtype)
    for _ in range(iterations):
        v = matrix.T @ (matrix @ v)
        length = v.norm()
        if length == 0:
            return 0.0
        v = v / length
    return (matrix @ v).norm().item()
