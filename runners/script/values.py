"""Checks of what a script logs, made where it enters: an error names its key."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from minigpt import records as col
from minigpt.records import InputError

MAX_STEP = 2**53  # the first whole number that a page's float64 cannot tell apart
MAX_KEY = 250  # characters, MLflow's own limit
_KEY = re.compile(r"[/\w.\- :]+")
_RESERVED = {"step", col.TIME_WALL}
# Columns of ours that are no scalars; a scalar of that name would pass for one.
_RESERVED |= {col.BATCH_TOKENS, col.BATCH_ROW_LENGTHS, col.BATCH_FINGERPRINT}
_RESERVED |= {col.TOKEN_LOSS, col.TOKEN_LOSS_HISTOGRAM, col.PARAM_HASH, col.DTYPE}
_RESERVED_PREFIXES = ("summary/", "histogram/")


def check_step(step: Any) -> int:
    """A step as a plain integer.

    Raises:
        InputError: it is not a whole number from 0 to 2**53 - 1.
    """
    if isinstance(step, bool) or not isinstance(step, Integral):
        raise InputError(f"step: expected a whole number, got {brief(step)}")
    if not 0 <= step < MAX_STEP:
        raise InputError(f"step: expected 0 to 2**53 - 1, got {step}")
    return int(step)


def check_key(key: Any, taken: Collection[str] = ()) -> str:
    """A key that MLflow takes too, and that hides no column.

    Args:
        key: of a value, a histogram or a rule.
        taken: columns that the run records by itself.

    Raises:
        InputError: it is none; the key is named.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key) or len(key) > MAX_KEY:
        raise InputError(
            f"key: expected 1 to {MAX_KEY} letters, digits or _ - . : / and spaces, "
            f"got {brief(key)}"
        )
    # MLflow files a value under its key, as under a path.
    if posixpath.normpath(key) != key or key.startswith(("/", "..")) or key == ".":
        raise InputError(
            f"key: expected no '/' at either end, no '//' and no '.' or '..' between "
            f"slashes, got {key!r}"
        )
    if key in _RESERVED or key.startswith(_RESERVED_PREFIXES):
        raise InputError(f"key {key!r}: expected another one, this one is reserved")
    if key in taken:
        raise InputError(
            f"key {key!r}: expected another one, watch() records a column of this name"
        )
    return key


def check_value(key: str, value: Any) -> float:
    """A number as a float64; NaN and infinities are numbers.

    Args:
        key: named in the error.
        value: a number, or anything with one element and a method ``item``.

    Raises:
        InputError: it is not one real number.
    """
    number = value if isinstance(value, Real) else _item(key, value)
    if isinstance(number, bool | np.bool_) or not isinstance(number, Real):
        raise InputError(f"{key}: expected a real number, got {brief(value)}")
    try:
        return float(number)
    except OverflowError:
        raise InputError(
            f"{key}: expected a number below 1.8e308, got {brief(value)}"
        ) from None


def _item(key: str, value: Any) -> Any:
    """The one element of an array or tensor; anything else as it is."""
    shape = getattr(value, "shape", None)
    if shape is None or not hasattr(value, "item"):
        return value
    if math.prod(shape) != 1:
        raise InputError(
            f"{key}: expected one number, got {type(value).__name__} of shape "
            f"{tuple(shape)}"
        )
    return value.item()


def check_config(config: Any) -> dict[str, Any]:
    """A configuration as plain JSON: dicts, lists, text, finite numbers, bool, None.

    Raises:
        InputError: a key or value is something else; the dotted key is named.
    """
    if not isinstance(config, Mapping):
        raise InputError(f"config: expected keys and values, got {brief(config)}")
    return _plain_dict(config, "config", 0)


def _plain_dict(config: Mapping[Any, Any], place: str, depth: int) -> dict[str, Any]:
    plain = {}
    for key, value in config.items():
        if not isinstance(key, str):
            raise InputError(f"{place}: expected keys of text, got {brief(key)}")
        check_key_of_config(place, key)
        plain[key] = _plain(value, f"{place}.{key}", depth + 1)
    return plain


def check_key_of_config(place: str, key: str) -> None:
    """Refuse a key that MLflow would refuse as part of a param's name."""
    if not _KEY.fullmatch(key) or posixpath.normpath(key) != key or key[0] in "/.":
        raise InputError(
            f"{place}: expected keys of letters, digits or _ - . : / and spaces, "
            f"without a dot or slash at their start, got {key!r:.80}"
        )


def _plain(value: Any, place: str, depth: int) -> Any:
    if depth > 50:
        raise InputError(f"{place:.200}: expected at most 50 levels, got more")
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Mapping):
        return _plain_dict(value, place, depth)
    if isinstance(value, list | tuple):
        return [
            _plain(one, f"{place}.{index}", depth + 1)
            for index, one in enumerate(value)
        ]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise InputError(
        f"{place}: expected text, a finite number, true, false, None, a list or keys "
        f"and values, got {brief(value)}"
    )


def flattened(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a config that holds no further keys."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def check_text(place: str, value: Any, required: bool = False) -> str | None:
    """A text, or None where it may be left out.

    Raises:
        InputError: it is neither.
    """
    if value is None and not required:
        return None
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{place}: expected text, got {brief(value)}")
    return value


def brief(value: Any) -> str:
    """What arrived, short enough for one line."""
    text = repr(value).replace("\n", " ")
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return text if isinstance(value, str) else f"{text} ({type(value).__name__})"
