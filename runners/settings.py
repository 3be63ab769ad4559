"""The choices of a run that belong to no part of ``minigpt``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from minigpt.records import InputError

SQLITE = "sqlite:///"
KINDS = ("mlflow", "offline", "none")
HIDDEN = "***"  # stands for the user, and for every password, of an address
_SECRET = re.compile(r"(?i)([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*")
_NO_FILE_STORE = (
    "MLflow 3.13 and newer refuses a folder as its store; use "
    "sqlite:///mlflow.db, and `mlflow migrate-filestore` to move old runs"
)
_ADDRESS = re.compile(
    r"(?:sqlite:///|https?://|(?:postgresql|mysql)(?:\+\w+)?://).+", re.DOTALL
)


class StoreError(InputError):
    """The MLflow store cannot be reached or opened."""


@dataclass(kw_only=True)
class PrecisionConfig:
    """Attributes: dtype, of weights, activations and gradients; "float32" only."""

    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype != "float32":
            raise InputError(f"precision.dtype: expected 'float32', got {self.dtype!r}")


@dataclass(kw_only=True)
class TrackingConfig:
    """Where the curves go.

    Attributes:
        kind: "mlflow"; "offline" leaves the curves to `autopsy sync`; "none" is not
            for MLflow at all.
        uri: a SQLite, HTTP, PostgreSQL or MySQL address; null is the SQLite file in
            ``paths.root``.
        experiment: name of the MLflow experiment.
    """

    kind: str = "mlflow"
    uri: str | None = None
    experiment: str = "loss-autopsy"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(
                f"tracking.kind: expected one of {', '.join(KINDS)}; got {self.kind!r}"
            )
        if not self.experiment.strip():
            raise InputError("tracking.experiment: expected a name, got an empty one")
        if self.uri is not None:
            check_uri(self.uri)


@dataclass(kw_only=True)
class PathsConfig:
    """Attributes: root, the folder of all runs, relative to the working folder."""

    root: str = "experiments"

    def __post_init__(self) -> None:
        if not self.root.strip() or "\0" in self.root:
            raise InputError(f"paths.root: expected a folder, got {self.root!r}")


def redacted(uri: str) -> str:
    """An address without the user and the passwords that it may hold."""
    scheme, mark, rest = uri.partition("://")
    if not mark or scheme == "sqlite":
        return uri
    place, question, query = rest.partition("?")
    if "@" in place:
        place = f"{HIDDEN}@{place.rpartition('@')[2]}"
    query = _SECRET.sub(rf"\1{HIDDEN}", question + query)
    return f"{scheme}://{place}{query}"


def sqlite_path(uri: str) -> Path:
    """The file that a SQLite address means."""
    return Path(unquote(uri.removeprefix(SQLITE).partition("?")[0]))


def default_uri(root: Path) -> str:
    """The SQLite file in the folder of all runs.

    Raises:
        InputError: the folder's name cannot be part of such an address.
    """
    path = root.resolve() / "mlflow.db"
    if {"?", "%"} & set(str(path)):
        raise InputError(
            f"paths.root: expected a folder without ? and % in its path, got {root}; "
            "an SQLite address cannot hold them"
        )
    return f"{SQLITE}{path}"


def check_uri(uri: str, label: str = "tracking.uri") -> None:
    """Refuse an address that MLflow would not take, or would take for a folder.

    Raises:
        InputError: what an address looks like; without the password in it.
    """
    if uri.startswith("file:") or "://" not in uri:
        raise InputError(f"{label}: got {uri!r}; {_NO_FILE_STORE}")
    if not _ADDRESS.fullmatch(uri):
        scheme = uri.partition("://")[0]  # the rest may hold a password
        raise InputError(
            f"{label}: expected sqlite:///<file>, http(s)://<server>, "
            f"postgresql://... or mysql://...; got {scheme}://..."
        )
