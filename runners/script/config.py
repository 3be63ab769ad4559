"""The configuration of a script's run: a mapping whose every change is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from minigpt.records import InputError
from runners.script.values import check_config, flattened


class RunConfig(Mapping[str, Any]):
    """``run.config``: read like a dict, written by ``config["lr"] = 1e-3`` or update.

    MLflow never rewrites a param. So a change of a value that was set before is kept
    beside it: which key, what it was, what it became, and at which step.

    Args:
        manifest: whose ``config`` and ``config_changes`` these are.
        save: writes the manifest.
        step: gives the present step.

    Raises:
        InputError: a value is not plain; see ``check_config``.
    """

    def __init__(
        self,
        manifest: dict[str, Any],
        save: Callable[[], None],
        step: Callable[[], int | None],
    ) -> None:
        self._manifest, self._save, self._step = manifest, save, step

    def __getitem__(self, key: str) -> Any:
        return _frozen(self._manifest["config"][key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._manifest["config"])

    def __len__(self) -> int:
        return len(self._manifest["config"])

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, *parts: Any, **named: Any) -> None:
        """Set values; all of them are checked before any is.

        Raises:
            InputError: a value is not plain.
            OSError: the manifest cannot be written.
        """
        further: dict[Any, Any] = {}
        for part in parts:
            further |= check_config(part)
        change_config(self._manifest, further | check_config(named), self._step())
        self._save()

    def __repr__(self) -> str:
        return repr(self._manifest["config"])


def change_config(
    manifest: dict[str, Any], further: dict[str, Any], step: int | None
) -> None:
    """Put checked values into a manifest, and into its changes what was another.

    Raises:
        InputError: two values would have the same dotted key.
    """
    before = dict(flattened(manifest["config"]))
    config = manifest["config"] | further
    after = list(flattened(config))
    keys = dict(after)
    if len(keys) < len(after):
        seen = [key for key, _ in after]
        twice = next(key for key in seen if seen.count(key) > 1)
        raise InputError(f"config.{twice}: expected once, got two values of that name")
    changes = [
        {"key": key, "before": value, "after": keys.get(key), "step": step}
        for key, value in before.items()
        if str(keys.get(key)) != str(value)
    ]
    manifest["config"] = config
    manifest["config_changes"] = [*manifest.get("config_changes", []), *changes]


def _frozen(value: Any) -> Any:
    """What cannot be changed behind the back of the manifest."""
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(one) for key, one in value.items()})
    if isinstance(value, list):
        return tuple(_frozen(one) for one in value)
    return value
