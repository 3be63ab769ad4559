"""What a resume would train: the run's own config, but for what may be another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minigpt.records import InputError
from runners.compose import compose_config
from runners.config import RunConfig, to_plain
from runners.reopen import check_reopens
from runners.schema import from_plain
from runners.settings import HIDDEN

_CHANGEABLE = ("steps", "tracking", "checkpoint")


@dataclass
class Resume:
    """A run to go on with, and what of its config is to be another.

    Attributes:
        folder: the run folder.
        config: with the changes.
        changes: dotted key, before, after, of what determines the record.
    """

    folder: Path
    config: RunConfig
    changes: list[dict[str, Any]] = field(default_factory=list)


def plan_resume(
    folder: Path, overrides: Sequence[str], search_dir: str | None
) -> Resume:
    """What a resume of this run would train; nothing is changed yet.

    Args:
        folder: of a run that ended early, or of a finished one with ``steps`` more.
        overrides: of ``steps``, ``tracking`` and ``checkpoint``; whatever else is
            changed would make another run.
        search_dir: see ``compose_config``.

    Raises:
        InputError: the run is live, foreign or complete; or an override is refused.
    """
    manifest = check_reopens(folder)
    plain = manifest.get("config")
    if manifest.get("kind") == "logged" or not isinstance(plain, dict):
        raise InputError(
            f"{folder.name}: expected a run of autopsy train; a script of your own "
            "goes on with init(resume=...)"
        )
    config = _changed(folder, manifest, overrides, search_dir)
    done = (manifest.get("record") or {}).get("rows", 0)
    if manifest["status"] == "finished" and done >= config.steps:
        raise InputError(
            f"{folder.name}: expected a run that ended early, found one that finished "
            f"its {done} steps; steps={2 * done} trains it on"
        )
    check_steps(config, done)
    changes = []
    if config.steps != (before := plain.get("steps")):
        changes.append({"key": "steps", "before": before, "after": config.steps})
    return Resume(folder, config, changes)


def check_steps(config: RunConfig, recorded: int) -> None:
    """Refuse to end before what is recorded.

    Raises:
        InputError: the config has fewer steps.
    """
    if config.steps < recorded:
        raise InputError(
            f"steps: expected at least the {recorded} that are recorded, got "
            f"{config.steps}"
        )


def _changed(
    folder: Path,
    manifest: dict[str, Any],
    overrides: Sequence[str],
    search_dir: str | None,
) -> RunConfig:
    chosen = {_key(one) for one in overrides}
    if odd := sorted(chosen - {*_CHANGEABLE, "paths"}):
        raise InputError(
            f"resume: expected no other choice than {', '.join(_CHANGEABLE)}, got "
            f"{', '.join(odd)}; a run with another choice is another run"
        )
    plain = dict(manifest["config"])
    plain["paths"] = {"root": str(folder.parent)}
    if chosen:
        asked = to_plain(compose_config(list(overrides), search_dir))
        plain |= {key: asked[key] for key in ("steps", "checkpoint") if key in chosen}
        plain["tracking"] = dict(plain["tracking"])
        for one in overrides:
            name = one.partition("=")[0]
            if _key(one) == "tracking":  # the group says the kind and nothing else
                name = name.partition(".")[2] or "kind"
                plain["tracking"][name] = asked["tracking"][name]
    uri = plain["tracking"]["uri"] or ""
    if plain["tracking"]["kind"] == "mlflow" and HIDDEN in uri:
        raise InputError(
            f"tracking.uri: expected an address with its password, which a manifest "
            f"does not keep, found {uri}; give tracking.uri=... or tracking=offline"
        )
    return from_plain(plain | {"experiment": manifest.get("experiment")})


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition(".")[0]
