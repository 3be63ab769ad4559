"""One line for every way in which overrides on the command line can be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import OmegaConfBaseException

from minigpt.records import InputError
from runners.config import RunConfig
from runners.config_errors import (
    closest,
    did_you_mean,
    explain_value_error,
    one_line,
    unknown_key,
)
from runners.override_syntax import explain_syntax, quoted

CONF_DIR = Path(__file__).resolve().parent.parent / "conf"


@cache
def group_options() -> dict[str, dict[str, list[str]]]:
    """Group of the defaults list -> option -> the keys of its file, sorted."""
    defaults = _read(CONF_DIR / "config.yaml")["defaults"]
    entries = [entry for entry in defaults if isinstance(entry, dict)]
    names = sorted(next(iter(entry)) for entry in entries)
    return {
        name: {path.stem: list(_read(path)) for path in _files(name)}
        for name in names
        if not name.startswith("override ")
    }


def _files(group: str) -> list[Path]:
    return sorted((CONF_DIR / group).glob("*.yaml"), key=lambda path: path.stem)


def _read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def explain_override_error(exc: BaseException, overrides: Sequence[str]) -> str:
    """What the user got wrong, in one line that names the key and the choices.

    Args:
        exc: what Hydra, OmegaConf or the YAML reader raised.
        overrides: what it was given.
    """
    if isinstance(exc, OverrideParseException):
        return explain_syntax(exc.override)
    if isinstance(exc, MissingConfigException):
        return _missing_option(exc)
    if isinstance(exc, OmegaConfBaseException):
        return explain_value_error(exc, {})
    if isinstance(exc, yaml.YAMLError):
        return f"a file of the configuration is not valid YAML: {one_line(exc)}"
    if isinstance(exc, UserWarning):
        folder = one_line(exc).partition("path=")[2].removesuffix(" is not available.")
        return f"hydra.searchpath: no such folder: {folder}"
    if isinstance(exc, ConfigCompositionException):
        return _composition(exc, overrides)
    if isinstance(exc, HydraException) and "sweep type" in str(exc):
        which = next((one for one in overrides if "interval(" in one), "interval")
        return f"{which}: it names no values; use range(...), choice(...) or a,b"
    if isinstance(exc, AttributeError | TypeError):
        reason = one_line(str(exc).partition("full_key:")[0])
        return f"{' '.join(overrides)}: Hydra cannot combine these ({reason})"
    return _refused_option(overrides) or one_line(exc) or type(exc).__name__


def refuse_lists(overrides: Sequence[str]) -> None:
    """Refuse a list as a group's option: Hydra would mix the options silently.

    Raises:
        InputError: names the group and the list.
    """
    for override in overrides:
        key, _, value = override.partition("=")
        if key in group_options() and value.strip().startswith("["):
            raise InputError(
                f"{key}: expected one option, got {value}; -m runs several in turn"
            )


def _missing_option(exc: MissingConfigException) -> str:
    path = str(exc.missing_cfg_file or "")
    inside_hydra = path.startswith("hydra/")
    group, _, option = path.rpartition("/") if inside_hydra else path.partition("/")
    options = exc.options or group_options().get(group)
    if not option or options is None:
        return one_line(str(exc).partition("Config search path")[0])
    listed = ", ".join(sorted(options))
    hint = did_you_mean(option, options)
    return f"{group}: expected one of {listed}; got {option!r}{hint}"


def _refused_option(overrides: Sequence[str]) -> str:
    """The line for a group whose option is not a name, such as a number or null."""
    parser = OverridesParser.create()
    for override in overrides:
        key, _, value = override.partition("=")
        if not key.strip("+~ "):
            return explain_syntax(override)
        parsed = parser.parse_override(override)
        named = isinstance(parsed.value(), str | list) or parsed.is_sweep_override()
        if named or parsed.is_delete():
            continue
        if options := group_options().get(parsed.key_or_group):
            return f"{key}: expected one of {', '.join(options)}; got {value}"
        if "/" in key:
            return f"{key}: expected the name of an option, got {value}"
    return ""


def _composition(exc: ConfigCompositionException, overrides: Sequence[str]) -> str:
    text, cause = str(exc), exc.__cause__
    for start, explain in _BY_START.items():
        if text.startswith(start):
            return explain(text)
    if "No match in the defaults list" in text:
        key = text.partition("'")[2].partition("'")[0]
        return f"{key}: not a choice of a run (choices: {', '.join(group_options())})"
    for override in overrides:
        key = override.partition("=")[0]
        if "@" in key:
            return f"{key}: expected a key or group without '@'"
    if isinstance(cause, OmegaConfBaseException):
        if text.startswith("Could not override"):
            return _unknown_key(cause)
        return explain_value_error(cause, {})
    return one_line(text) or type(exc).__name__


def _unknown_key(cause: OmegaConfBaseException) -> str:
    line = unknown_key(str(cause.full_key), cause.parent_node, group_options())
    group, _, key = str(cause.full_key).partition(".")
    options = group_options().get(group, {})
    everywhere = {name for keys in options.values() for name in keys}
    meant = key if key in everywhere else closest(key, everywhere)
    holders = [f"{group}={option}" for option, keys in options.items() if meant in keys]
    if not holders or "did you mean" in line or "." in key:
        return line
    return f"{line}; {group}.{meant} belongs to {' and '.join(holders)}"


def _sweep(text: str) -> str:
    override = text.partition("'")[2].partition("\n")[0].rpartition("'")[0]
    key, _, value = override.partition("=")
    line = f"{key}: {value} is a sweep; add -m to run one job for each value"
    hint = get_type_hints(RunConfig).get(key, str)
    if key in group_options() or hint in (int, int | None, float | None):
        return line
    return f"{line}, or, if it is meant as text, quote it: {quoted(key, value)}"


def _twice(text: str) -> str:
    key = text.removeprefix("Multiple values for ").partition(". ")[0]
    return f"{key}: it has a choice already; leave out the '+' to change it"


def _present(text: str) -> str:
    key = text.partition("'")[2].partition("'")[0]
    return f"{key}: it exists already; leave out the '+' to change it"


def _absent(text: str) -> str:
    key = text.partition("'")[2].partition("'")[0]
    return f"{key}: nothing to remove; there is no such key"


# The beginnings of Hydra 1.3's messages; its exceptions carry nothing else.
_BY_START: dict[str, Callable[[str], str]] = {
    "Ambiguous value for argument": _sweep,
    "Sweep parameters": _sweep,
    "Multiple values for": _twice,
    "Could not append to config": _present,
    "Could not delete from config. '": _absent,
}
