"""The name of a run: what was chosen, and nothing that was left as it is."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from runners.config import (
    DEFAULT_INJECTION_STEP,
    DEFAULT_STEPS,
    RunConfig,
    leaves,
    to_plain,
)

MAX_NAME = 120
MAX_TEXT = 24  # characters of a text value
HASH = 6  # hex digits of what a shortened name leaves out

# Said at the front, or nothing that the record or the folder's files depend on.
_SAID = ("injection.kind", "clip", "loader.kind", "seed", "data_seed")
_SAID += ("injection_step", "steps", "name", "experiment", "injection.predictions")
_NO_CHOICE = ("paths.", "tracking.")
_SAID_WHOLE = ("checkpoint.",)  # "every" alone says nothing
_LOOKS_PLAIN = ("null", "true", "false")


def run_name(config: RunConfig) -> str:
    """The given name, or one composed of the choices that differ from the defaults.

    ``scale-clip0.5-stratified-s42``; then ``-d7`` for a data seed of its own,
    ``-k312`` for another injection step, ``-n501`` for another number of steps, and
    every other choice that is not the default by its key: ``-factor10``,
    ``-beta2-0.999``. A name that had to shorten a value, or itself, ends in six
    digits of a hash, so that two configs do not share it.
    """
    if config.name is not None:
        return config.name
    parts = [config.injection.kind, _clip(config.clip), config.loader.kind]
    parts.append(f"s{config.seed}")
    if config.data_seed != config.seed:
        parts.append(f"d{config.data_seed}")
    if config.injection.uses_step and config.injection_step != DEFAULT_INJECTION_STEP:
        parts.append(f"k{config.injection_step}")
    if config.steps != DEFAULT_STEPS:
        parts.append(f"n{config.steps}")
    changed = _changed(config)
    labels = _labels(config)
    said = [_say(labels[key], value) for key, value in changed.items()]
    name = "-".join([*parts, *(text for text, _ in said)])
    if len(name) <= MAX_NAME and all(exact for _, exact in said):
        return name
    kept = name[: MAX_NAME - HASH - 1].rstrip("-._ ")
    return f"{kept}-{_hash(changed)}"


def _clip(clip: float | None) -> str:
    return "noclip" if clip is None else f"clip{float(clip)!r}".replace("+", "")


def _changed(config: RunConfig) -> dict[str, Any]:
    """The other choices that differ from their defaults, by dotted key."""
    default = RunConfig(
        injection=type(config.injection)(kind=config.injection.kind),
        # the default step may lie beyond the end of a short run
        injection_step=config.injection_step,
        steps=config.steps,
    )
    before = dict(leaves(to_plain(default)))
    return {
        key: value
        for key, value in leaves(to_plain(config))
        if key not in _SAID and not key.startswith(_NO_CHOICE) and value != before[key]
    }


def _labels(config: RunConfig) -> dict[str, str]:
    """Dotted key -> its last part, or all of it where that would not tell."""
    keys = [key for key, _ in leaves(to_plain(config))]
    last = [key.rpartition(".")[2] for key in keys]
    return {
        key: key.replace(".", "_")
        if last.count(short) > 1 or key.startswith(_SAID_WHOLE)
        else short
        for key, short in zip(keys, last, strict=True)
    }


def _say(label: str, value: Any) -> tuple[str, bool]:
    """A choice as part of a name, and whether it can be read back from it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        mark = "-" if label[-1].isdigit() else ""
        return f"{label}{mark}{_number(value)}", True
    if value is None or isinstance(value, bool):
        return f"{label}-{json.dumps(value)}", True
    text = value if isinstance(value, str) else json.dumps(value)
    short = re.sub(r"[^A-Za-z0-9_.]+|\.{2,}", "_", text)[:MAX_TEXT].strip("._")
    return f"{label}-{short}", bool(text) and short == text and text not in _LOOKS_PLAIN


def _number(value: float) -> str:
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return repr(int(value) if whole else value).replace("+", "")


def _hash(changed: dict[str, Any]) -> str:
    text = json.dumps(changed, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH]
