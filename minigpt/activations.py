"""Activation sites: which modules are watched, and what their output measures."""

from __future__ import annotations

from collections.abc import Callable

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

    The mean is over all elements, padding included: (1 / (B T D)) sum |A|. Outputs
    are kept until the model's forward pass ends and measured together: a numpy call
    between two kernels of the model costs several times what it costs beside its
    like. A site whose output was changed in place meanwhile is measured on the spot
    from then on, as every site is at its first pass; that one value is NaN.

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
        self._values = np.full((2, len(self.sites)), np.nan, dtype=np.float32)
        self._kept: dict[int, tuple[Tensor, int]] = {}  # place -> output, its version
        self._can_wait = [False] * len(self.sites)
        self.enabled = True
        self._handles: list[RemovableHandle] = [
            modules[site].register_forward_hook(self._hook(place))
            for place, site in enumerate(self.sites)
        ]
        self._handles.append(model.register_forward_hook(self._pass_ended))

    @property
    def values(self) -> np.ndarray:
        """Means, then largest values: float32, shape (2 x sites,)."""
        self._measure_kept()  # of a pass that did not end, or not through the model
        return self._values.reshape(-1)

    def _hook(self, place: int) -> Callable[[nn.Module, object, object], None]:
        def look(module: nn.Module, inputs: object, output: object) -> None:
            wanted = self.enabled and module.training  # no evaluation passes
            if not (wanted and _is_measurable(output)):
                return
            output = output.detach()
            if not self._can_wait[place]:
                self._measure([place], [output])
            if not output.is_inference():  # such a tensor does not count its changes
                self._kept[place] = output, output._version

        return look

    def _pass_ended(self, *ignored: object) -> None:
        self._measure_kept()

    def _measure_kept(self) -> None:
        kept, self._kept = self._kept, {}
        by_shape: dict[torch.Size, list[int]] = {}
        for place, (output, version) in kept.items():
            measured, same = not self._can_wait[place], output._version == version
            self._can_wait[place] = same
            if measured:
                continue
            if same:
                by_shape.setdefault(output.shape, []).append(place)
            else:
                self._values[:, place] = np.nan
        for places in by_shape.values():
            self._measure(places, [kept[place][0] for place in places])

    def _measure(self, places: list[int], outputs: list[Tensor]) -> None:
        """Of outputs of one shape."""
        sizes = torch.stack(outputs).abs_().view(len(outputs), -1)
        means, largest = sizes.mean(1, dtype=torch.float32), sizes.amax(1)
        found = torch.stack((means, largest)).cpu().numpy()
        for column, place in enumerate(places):
            self._values[:, place] = found[:, column]

    def close(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()


def _is_measurable(output: object) -> bool:
    if not isinstance(output, Tensor):
        return False
    return output.is_floating_point() and output.numel() > 0
