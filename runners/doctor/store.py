"""The doctor's look at the MLflow store: which it is, and what answers there.

It makes and migrates nothing, and does without MLflow itself, whose import takes
seconds and may be what is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import unquote

from runners.doctor.check import OK, PROBLEM, Check, within
from runners.doctor.http import check_http
from runners.doctor.sql import check_sql
from runners.doctor.sqlite import check_sqlite
from runners.settings import SQLITE, default_uri, redacted
from runners.tracked import Place

SECONDS = 8.0  # in which a store has to say what it is asked


def store_address(place: Place) -> str:
    """The address of the store, whether there is one or not.

    Raises:
        InputError: the root's name cannot be part of such an address.
    """
    return place.uri or default_uri(place.root)


def check_store(address: str) -> list[Check]:
    """Rows about the store; after eight seconds one that says that it is silent."""
    kind, look = _kind(address)
    shown = without_secrets(address, address)
    head = Check("store", OK, f"{shown} ({kind})")
    try:
        rows = within(SECONDS, lambda: look(address))
    except (OSError, ValueError) as error:  # a host or port that is none
        line = " ".join(str(error).split()) or type(error).__name__
        advice = "see that the address is right"
        rows = [Check("store answers", PROBLEM, line, advice)]
    if rows is None:
        found = f"no answer within {SECONDS:.0f} s"
        advice = "see that the address is right and the server well"
        rows = [Check("store answers", PROBLEM, found, advice)]
    return [head, *(_clean(row, address) for row in rows)]


def _kind(address: str) -> tuple[str, Callable[[str], list[Check]]]:
    if address.startswith(SQLITE):
        return "a SQLite file", check_sqlite
    if address.startswith("http"):
        return "an MLflow server", check_http
    name = "a PostgreSQL" if address.startswith("postgresql") else "a MySQL"
    return f"{name} server", check_sql


def _clean(row: Check, address: str) -> Check:
    found, advice = (without_secrets(text, address) for text in (row.found, row.advice))
    return Check(row.name, row.answer, found, advice)


def without_secrets(text: str, address: str) -> str:
    """A text without the passwords that the address holds."""
    text = text.replace(address, redacted(address))
    for secret in sorted(_secrets(address), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(address: str) -> Iterator[str]:
    """Passwords before the host and in the query, as they are written and meant."""
    if address.startswith(SQLITE):
        return
    before, _, query = address.partition("://")[2].partition("?")
    user = before.rpartition("@")[0]
    pairs = (pair.partition("=") for pair in query.split("&"))
    written = [value for key, _, value in pairs if "password" in key.lower()]
    for secret in filter(None, [user.partition(":")[2], *written]):
        yield secret
        yield unquote(secret)
