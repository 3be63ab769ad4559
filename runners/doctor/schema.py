"""The version of a store's tables against the one that the installed MLflow expects.

The migrations that come with MLflow are read and not imported: an MLflow that does
not import is one of the things that a doctor meets.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from runners.doctor.check import NOT_APPLICABLE, OK, PROBLEM, Check

NAME = "schema of the store"
_MIGRATIONS = Path("store", "db_migrations", "versions")


def check_schema(found: Iterable[str], address: str) -> Check:
    """One row: both versions, and which of the two is behind.

    Args:
        found: what the store's table alembic_version holds.
        address: of the store, for the command that is advised.
    """
    found = list(found)
    revisions = installed_revisions()
    if not revisions:
        return Check(NAME, NOT_APPLICABLE, "MLflow is not installed")
    expected = head(revisions)
    mlflow = f"MLflow {version('mlflow')}"
    if found == [expected]:
        return Check(NAME, OK, f"{expected}, as {mlflow} expects")
    what = ", ".join(found) or "none"
    said = f"{what}; {mlflow} expects {expected}"
    if all(one in revisions for one in found):
        advice = f"take a copy of the store, then: mlflow db upgrade '{address}'"
        return Check(NAME, PROBLEM, f"older: {said}", advice)
    advice = "upgrade MLflow: the store was made by a newer one"
    return Check(NAME, PROBLEM, f"newer: {said}", advice)


def installed_revisions() -> dict[str, tuple[str, ...]]:
    """Revision -> those it follows, of the installed MLflow; empty without one."""
    spec = find_spec("mlflow")
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = Path(spec.submodule_search_locations[0]) / _MIGRATIONS
    files = (path for path in folder.glob("*.py") if path.name != "__init__.py")
    return dict(_revision(path.read_text()) for path in files)


def head(revisions: dict[str, tuple[str, ...]]) -> str:
    """The revision that no other follows."""
    followed = {before for befores in revisions.values() for before in befores}
    return ", ".join(sorted(set(revisions) - followed))


def _revision(text: str) -> tuple[str, tuple[str, ...]]:
    values = dict(_assigned(text))
    before = values["down_revision"] or ()
    return values["revision"], (before,) if isinstance(before, str) else tuple(before)


def _assigned(text: str) -> Iterator[tuple[str, object]]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("revision", "down_revision"):
                yield name, ast.literal_eval(node.value)
