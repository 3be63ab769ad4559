"""The mini-GPT: pre-LayerNorm decoder, RoPE, GELU, tied head with its own bias.

Shape legend: B rows, T positions, D model width, H heads, K head width, F inner
width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minigpt.records import InputError


@dataclass(kw_only=True)
class ModelConfig:
    """Sizes of the model.

    Attributes:
        d_model: width D; a multiple of ``2 * n_heads``, as RoPE turns pairs.
        n_layers: number of blocks.
        n_heads: attention heads H.
        d_ff: inner width F of the feed-forward part.
        vocab_size: rows of the embedding, whether or not the tokenizer uses all.
        init_std: weights are drawn from N(0, init_std); biases are 0, norms 1 / 0.
        rope_base: wavelength base of the rotary embedding.
    """

    d_model: int = 64
    n_layers: int = 2
    n_heads: int = 4
    d_ff: int = 256
    vocab_size: int = 512
    init_std: float = 0.02
    rope_base: float = 10000.0

    def __post_init__(self) -> None:
        for name in ("d_model", "n_layers", "n_heads", "d_ff", "vocab_size"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"model.{name}: expected at least 1, got {getattr(self, name)}"
                )
        if self.d_model % (2 * self.n_heads):
            raise InputError(
                f"model.d_model: expected a multiple of 2 x n_heads "
                f"({2 * self.n_heads}), got {self.d_model}"
            )
        if not (self.init_std > 0 and self.rope_base > 1):
            raise InputError(
                "model: expected init_std > 0 and rope_base > 1, "
                f"got {self.init_std} and {self.rope_base}"
            )


def parameter_count(config: ModelConfig) -> int:
    """Closed form: V D + V + L (4 D^2 + 2 D F + F + D + 4 D) + 2 D."""
    d, f, v = config.d_model, config.d_ff, config.vocab_size
    return v * d + v + config.n_layers * (4 * d * d + 2 * d * f + f + 5 * d) + 2 * d


def rope_tables(head_width: int, length: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotation angles, each of shape (T, K).

    Reference:
        Su et al., "RoFormer", 2021, equation 34 (halves rotated, not pairs).
    """
    frequency = base ** (-torch.arange(0, head_width, 2).float() / head_width)
    angle = torch.arange(length).float()[:, None] * frequency
    both = torch.cat([angle, angle], dim=-1)
    return both.cos(), both.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the two halves of the last axis by the tabled angles; shape kept."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Attention(nn.Module):
    """Causal multi-head self-attention without biases."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d = config.d_model
        self.n_heads = config.n_heads
        self.causal = True
        self.w_q = nn.Linear(d, d, bias=False)
        self.w_k = nn.Linear(d, d, bias=False)
        self.w_v = nn.Linear(d, d, bias=False)
        self.w_o = nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        b, t, d = x.shape
        heads = (b, t, self.n_heads, d // self.n_heads)
        q = rotate(self.w_q(x).view(heads).transpose(1, 2), cos, sin)  # B H T K
        k = rotate(self.w_k(x).view(heads).transpose(1, 2), cos, sin)
        v = self.w_v(x).view(heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.w_o(y.transpose(1, 2).reshape(b, t, d))


class FeedForward(nn.Module):
    """Two linear maps with biases and a GELU between them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w_1 = nn.Linear(config.d_model, config.d_ff)
        self.w_2 = nn.Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.w_2(F.gelu(self.w_1(x)))


class Block(nn.Module):
    """One pre-LayerNorm block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.d_model)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.d_model)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.attn(self.ln_1(x), cos, sin)
        return x + self.ffn(self.ln_2(x))


class TiedHead(nn.Module):
    """logits = h E^T + bias; the bias is the only part that is not tied."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, h: Tensor, embedding: Tensor) -> Tensor:
        """(B, T, D) and (V, D) -> (B, T, V)."""
        return F.linear(h, embedding, self.bias)


class MiniGPT(nn.Module):
    """The model under observation, built reproducibly from a seed.

    Right padding needs no mask: under a causal mask no real token sees a pad, and
    pads are left out of the loss.
    """

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.ln_final = nn.LayerNorm(config.d_model)
        self.lm_head = TiedHead(config.vocab_size)
        self._rope: tuple[Tensor, Tensor] | None = None
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(
                    parameter, std=self.config.init_std, generator=generator
                )
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def _tables(self, length: int) -> tuple[Tensor, Tensor]:
        if self._rope is None or self._rope[0].shape[0] < length:
            width = self.config.d_model // self.config.n_heads
            size = max(length, 64)
            self._rope = rope_tables(width, size, self.config.rope_base)
        cos, sin = self._rope
        return cos[:length], sin[:length]

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (B, T) -> logits (B, T, V)."""
        cos, sin = self._tables(tokens.shape[1])
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.lm_head(self.ln_final(x), self.embed.weight)

    @property
    def causal(self) -> bool:
        """Whether every block masks the future."""
        return all(block.attn.causal for block in self.blocks)


def token_losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of every target.

    Args:
        logits: (B, T, V).
        targets: (B, T) token ids, padding is -100.

    Returns:
        Losses in nats, shape (B * T,), zero at padding, and their mean over the
        targets that are not padding.
    """
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses, losses.sum() / (targets >= 0).sum()
