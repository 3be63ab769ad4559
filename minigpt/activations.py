"""Activation sites: which modules are watched, and what their output measures."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from minigpt.records import InputError

MAX_SITES = 32
_CONTAINERS = (nn.ModuleList, nn.Sequential)


def default_sites(model: nn.Module) -> list[str]:
    """Embeddings, the members of the outermost lists, and top-level norms.

    A model with none of these is watched at its direct children, or, without
    any, as a whole (the empty name). At most ``MAX_SITES``, evenly thinned.
    """
    named = [(name, module) for name, module in model.named_modules() if name]
    lists = [name for name, module in named if isinstance(module, _CONTAINERS)]
    outermost = [n for n in lists if not any(n.startswith(o + ".") for o in lists)]
    blocks = {
        f"{name}.{child}"
        for name in outermost
        for child, _ in model.get_submodule(name).named_children()
    }
    inside = tuple(f"{name}." for name in blocks)
    found = [
        name
        for name, module in named
        if name in blocks
        or (not name.startswith(inside) and _is_landmark(name, module))
    ]
    found = found or [name for name, _ in model.named_children()] or [""]
    if len(found) > MAX_SITES:
        picks = np.linspace(0, len(found) - 1, MAX_SITES).round().astype(int)
        found = [found[i] for i in picks]
    return found


def _is_landmark(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding) or "Norm" in type(module).__name__


class ActivationMeter:
    """Mean and largest absolute output of every site, at each pass of training.

    The mean is over all elements, padding included: (1 / (B T D)) sum |A|.

    Args:
        model: any module.
        sites: names of submodules; default ``default_sites(model)``.

    Raises:
        InputError: a site that the model does not have.
    """

    def __init__(self, model: nn.Module, sites: list[str] | None = None) -> None:
        self.sites = default_sites(model) if sites is None else sites
        modules = dict(model.named_modules())
        for site in self.sites:
            if site not in modules:
                raise InputError(
                    f"site: expected a submodule of the model, got {site!r}"
                )
        count = len(self.sites)
        self.values = np.full(2 * count, np.nan, dtype=np.float32)  # means, maxima
        self.enabled = True
        self._handles: list[RemovableHandle] = [
            modules[site].register_forward_hook(self._hook(index, index + count))
            for index, site in enumerate(self.sites)
        ]

    def _hook(self, mean_at: int, max_at: int):
        values = self.values

        def measure(module: nn.Module, inputs: object, output: object) -> None:
            wanted = self.enabled and module.training  # no evaluation passes
            if wanted and isinstance(output, Tensor) and output.numel():
                flat = np.abs(as_array(output))
                with np.errstate(over="ignore"):  # a sum beyond float32 is inf
                    values[mean_at] = np.add.reduce(flat) / flat.size
                values[max_at] = np.maximum.reduce(flat)

        return measure

    def close(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()


def as_array(tensor: Tensor) -> np.ndarray:
    """One-dimensional float32 array; a view where the tensor is already such."""
    tensor = tensor.detach()
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        tensor = tensor.to("cpu", torch.float32)
    return tensor.numpy().reshape(-1)
