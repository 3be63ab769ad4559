"""AdamW over flat buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minigpt.flat import FlatParameters
from minigpt.records import InputError


@dataclass(kw_only=True)
class AdamWConfig:
    """Decoupled weight decay Adam.

    Attributes:
        kind: "adamw", the only one so far.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the square root of the second moment.
        weight_decay: on matrices only; biases and norms are never decayed.
    """

    kind: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        if self.kind != "adamw":
            raise InputError(f"optimizer.kind: expected 'adamw', got {self.kind!r}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"optimizer.{name}: expected 0 <= {name} < 1, "
                    f"got {getattr(self, name)}"
                )
        if not self.eps > 0:
            raise InputError(f"optimizer.eps: expected > 0, got {self.eps}")
        if not self.weight_decay >= 0:
            raise InputError(
                f"optimizer.weight_decay: expected >= 0, got {self.weight_decay}"
            )


class FlatAdamW:
    """``torch.optim.AdamW(fused=True)`` over two flat parameters.

    One kernel call for the matrices (decayed) and one for the rest; the state of
    both lies in one flat buffer a moment.

    Attributes:
        exp_avg: float32, first moments, laid out as ``FlatParameters.values``.
        exp_avg_sq: float32, second moments, likewise.

    Reference:
        Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019,
        algorithm 2; Kingma and Ba, "Adam", 2015, algorithm 1.
    """

    def __init__(self, flat: FlatParameters, config: AdamWConfig) -> None:
        self.exp_avg = torch.zeros_like(flat.values)
        self.exp_avg_sq = torch.zeros_like(flat.values)
        parts = (slice(0, flat.n_decayed), slice(flat.n_decayed, None))
        groups = []
        for part, decay in zip(parts, (config.weight_decay, 0.0), strict=True):
            parameter = nn.Parameter(flat.values[part])
            parameter.grad = flat.gradients[part]
            groups.append({"params": [parameter], "weight_decay": decay})
        self._inner = torch.optim.AdamW(
            groups, betas=(config.beta1, config.beta2), eps=config.eps, fused=True
        )
        self._counters: list[Tensor] = []
        for group, part in zip(self._inner.param_groups, parts, strict=True):
            counter = torch.tensor(0.0)
            self._counters.append(counter)
            self._inner.state[group["params"][0]] = {
                "step": counter,
                "exp_avg": self.exp_avg[part],
                "exp_avg_sq": self.exp_avg_sq[part],
            }

    def step(self, lr: float) -> None:
        """One update with the gradients as they are now."""
        for group in self._inner.param_groups:
            group["lr"] = lr
        self._inner.step()

    @property
    def step_counter(self) -> float:
        """Updates the optimizer has counted; bias correction depends on it."""
        return self._counters[0].item()

    @step_counter.setter
    def step_counter(self, value: float) -> None:
        for counter in self._counters:
            counter.fill_(value)
