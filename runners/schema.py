"""The boundary: a configuration tree becomes a RunConfig, or one line says why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from minigpt.injections import config_class
from minigpt.records import InputError
from runners.config import RunConfig
from runners.config_errors import explain_value_error, shown


def from_hydra(cfg: DictConfig) -> RunConfig:
    """The run that a composed Hydra configuration describes.

    The experiment is the option chosen in the group ``experiment``. It is read from
    Hydra's own node if ``cfg`` still has it (compose API), else from the job that
    is running (``hydra.main``, single or multirun).

    Raises:
        InputError: names the full key, what was expected and what arrived.
    """
    experiment = _experiment(cfg)
    task = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    try:
        plain = OmegaConf.to_container(task, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as exc:
        raise InputError(explain_value_error(exc, {})) from exc
    return from_plain({**plain, "experiment": experiment})


def from_plain(plain: Mapping[str, Any]) -> RunConfig:
    """The run that ``to_plain`` made ``plain`` of, every key and type checked again.

    A key that is absent takes its default.

    Raises:
        InputError: names the full key, what was expected and what arrived.
    """
    for name, kind in _components().items():
        if not isinstance(plain.get(name, {}), Mapping):
            keys = ", ".join(field.name for field in fields(kind))
            raise InputError(
                f"{name}: expected keys ({keys}), got {shown(plain[name])}"
            )
    schema = OmegaConf.structured(RunConfig)
    fault = plain.get("injection", {"kind": "none"})
    try:
        if "kind" in fault:
            schema.injection = OmegaConf.structured(config_class(str(fault["kind"])))
        typed = OmegaConf.merge(schema, OmegaConf.create(dict(plain)))
        if "injection" not in plain:
            typed.injection.kind = "none"
        return OmegaConf.to_object(typed)
    except OmegaConfBaseException as exc:
        raise InputError(explain_value_error(exc, plain)) from exc


def _components() -> dict[str, type]:
    hints = get_type_hints(RunConfig)
    return {name: hint for name, hint in hints.items() if is_dataclass(hint)}


def _experiment(cfg: DictConfig) -> str | None:
    if "hydra" in cfg:
        choices = cfg.hydra.runtime.choices
    elif HydraConfig.initialized():
        choices = HydraConfig.get().runtime.choices
    else:
        return None
    chosen = choices.get("experiment")
    return chosen.removesuffix(".yaml") if chosen else None
