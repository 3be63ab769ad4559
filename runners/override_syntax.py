"""Why Hydra's grammar refuses an override, and how to quote it."""

from __future__ import annotations

import re
import shlex

_PLAIN = "_/-\\+.$%*@?|: "  # characters that a value may hold without quotes
_BRACKETS = {"[": "]", "{": "}", "(": ")"}


def explain_syntax(override: str) -> str:
    """Why an override cannot be read, and how to write it instead."""
    key, equals, value = override.partition("=")
    bare = key.lstrip("+~")
    if override.startswith("-"):
        return f"{override!r}: an option, not a choice; choices are key=value"
    if not equals or not bare or bare != "".join(bare.split()):
        return f"{override!r}: expected key=value, without spaces around the key"
    if not re.fullmatch(r"[\w./@$-]+", bare, re.ASCII):
        return f"{override!r}: expected a key of ASCII letters, digits, _ and ."
    if value.startswith("="):
        return f"{override!r}: expected one '=', as in {bare}={value.lstrip('=')}"
    if not value.isprintable():
        return f"{bare}: a line end or another control character in {value!r}"
    return f"{bare}: {_reason(value)} in {value!r}; quote it: {quoted(key, value)}"


def quoted(key: str, value: str) -> str:
    """The override as a shell argument whose value Hydra takes as it stands."""
    return shlex.quote(f"{key}={quoted_value(value)}")


def quoted_value(value: str) -> str:
    """The value in the quotes of Hydra's grammar."""
    quote = "'" if '"' in value else '"'
    # Backslashes count only before a quote, where each needs another one.
    return quote + re.sub(rf"(\\*)({quote}|$)", _escaped, value) + quote


def _escaped(match: re.Match[str]) -> str:
    slashes, quote = match.groups()
    return slashes * 2 + (f"\\{quote}" if quote else "")


def _reason(value: str) -> str:
    if value[:1] in ("'", '"') and value.count(value[0]) % 2:
        return "a quote is opened and not closed"
    for opening, closing in _BRACKETS.items():
        if value.count(opening) != value.count(closing):
            return f"'{opening}' and '{closing}' do not match"
    for char in value:
        if not char.isascii():
            return f"'{char}' is not ASCII"
        if not char.isalnum() and char not in _PLAIN:
            return f"{char!r} has a meaning of its own"
    return "something cannot be read"
