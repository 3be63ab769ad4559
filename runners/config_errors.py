"""One line for a key or a value that a run's configuration does not take."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

_WORDS = {int: "a whole number", float: "a number", str: "text", list: "a list"}


def one_line(text: object) -> str:
    """The text with every run of blanks and line ends made one space."""
    return " ".join(str(text).split())


def shown(value: object) -> str:
    """The value as one would write it in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def closest(word: str, choices: Iterable[str]) -> str:
    """The choice that looks most like the word, or nothing."""
    folded = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else ""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """``"; did you mean x?"``, or nothing when no choice looks like the word."""
    name = closest(word, choices)
    return f"; did you mean {name}?" if name else ""


def unknown_key(
    full_key: str, level: DictConfig | None, groups: Iterable[str] = ()
) -> str:
    """The line for a key that its level does not have.

    Args:
        full_key: dotted, as the user wrote it.
        level: the node that lacks the last part of the key.
        groups: names of groups that may be chosen but are not keys.
    """
    parent, _, key = full_key.rpartition(".")
    nodes = OmegaConf.to_container(level, resolve=False) if level is not None else {}
    keys = {str(name) for name in nodes} - {"hydra"}
    if parent and not keys:
        return f"{full_key}: no such key; {parent} is a value and holds no keys"
    if parent:
        kind = nodes.get("kind")
        owner = f"{parent} ({kind})" if kind else parent
        hint = did_you_mean(key, keys)
        return f"{full_key}: no such key{hint} (keys of {owner}: {_listed(keys)})"
    keys |= set(groups)
    deeper = [f"{name}.{key}" for name in sorted(keys) if key in _keys(nodes, name)]
    hint = f"; did you mean {deeper[0]}?" if deeper else did_you_mean(key, keys)
    return f"{full_key}: no such key{hint} (keys: {_listed(keys)})"


def _keys(nodes: Mapping[Any, Any], name: str) -> Iterable[Any]:
    node = nodes.get(name)
    return node if isinstance(node, Mapping) else ()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def explain_value_error(exc: OmegaConfBaseException, plain: Mapping[str, Any]) -> str:
    """The line for what OmegaConf refused to resolve or to fit into the schema.

    Args:
        exc: what it raised.
        plain: the values it was working on, as far as they are known.
    """
    key = exc.full_key or "config"
    if isinstance(exc, MissingMandatoryValue):
        return f"{key}: no value yet; give {key}=... on the command line"
    if isinstance(exc, ConfigKeyError | ConfigAttributeError):
        return unknown_key(key, exc.parent_node)
    if isinstance(exc, ValidationError) and exc.parent_node is not None:
        owner = OmegaConf.get_type(exc.parent_node)
        expected = _expected(get_type_hints(owner).get(key.rpartition(".")[2]))
        if expected:
            return f"{key}: expected {expected}, got {shown(_value(plain, key))}"
    return f"{key}: {one_line(str(exc).partition('full_key:')[0])}"


def _expected(hint: Any) -> str:
    """Words for a field's type, or nothing if there are none."""
    if get_origin(hint) in (Union, types.UnionType):
        words = [_expected(arg) for arg in get_args(hint) if arg is not type(None)]
        return f"{' or '.join(words)} or null"
    return _WORDS.get(get_origin(hint) or hint, "")


def _value(plain: Any, key: str) -> Any:
    for part in key.split("."):
        plain = plain.get(part) if isinstance(plain, Mapping) else None
    return plain
