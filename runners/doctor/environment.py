"""The doctor's look at Python, the installed packages and the environment."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from runners.doctor.check import NOT_APPLICABLE, OK, PROBLEM, WARNING, Check

_PROJECT = "loss-autopsy"
_INSTALL = "pip install -e '.[{}]'"
# Packages whose files are looked for too: a half removed one still has its metadata.
_MODULES = {"torch": "torch", "hydra-core": "hydra", "mlflow": "mlflow"}


def check_environment(address: str) -> list[Check]:
    """Rows about Python, packages and variables.

    Args:
        address: of the store, which decides whether its driver is needed.
    """
    return [
        _python(),
        _packages("packages", "", "pip install -e ."),
        _training(),
        _driver(address),
        *_variables(),
    ]


def _python() -> Check:
    wanted, found = metadata(_PROJECT)["Requires-Python"], platform.python_version()
    if SpecifierSet(wanted).contains(found, prereleases=True):
        return Check("Python", OK, found)
    return Check("Python", PROBLEM, f"{found}, expected {wanted}", "a newer Python")


def _training() -> Check:
    name = "packages for training"
    found = [_installed(one.name) for one in _requirements("train")]
    if not any(found):
        return Check(
            name,
            NOT_APPLICABLE,
            "not installed: records can be read and judged, not made",
            _INSTALL.format("train"),
        )
    return _packages(name, "train", _INSTALL.format("train"))


def _driver(address: str) -> Check:
    name = "driver of PostgreSQL"
    if not address.startswith("postgresql"):
        return Check(name, NOT_APPLICABLE, "the store is no PostgreSQL server")
    return _packages(name, "postgres", _INSTALL.format("postgres"))


def _packages(name: str, extra: str, advice: str) -> Check:
    """Whether what the project asks for is there, in a version that it asks for."""
    asked = _requirements(extra)
    wrong = [problem for one in asked if (problem := _wrong(one))]
    if wrong:
        return Check(name, PROBLEM, "; ".join(wrong), advice)
    versions = (f"{one.name} {_installed(one.name)}" for one in asked)
    return Check(name, OK, ", ".join(versions))


def _requirements(extra: str) -> list[Requirement]:
    """What the project itself asks for, or one of its extras does."""
    found = [Requirement(line) for line in requires(_PROJECT) or ()]
    return [
        one
        for one in found
        if (one.marker.evaluate({"extra": extra}) if one.marker else not extra)
    ]


def _wrong(asked: Requirement) -> str:
    found = _installed(asked.name)
    if found is None:
        return f"{asked.name}: expected {asked.specifier}, found none"
    if not asked.specifier.contains(found, prereleases=True):
        return f"{asked.name}: expected {asked.specifier}, found {found}"
    module = _MODULES.get(asked.name)
    if module and find_spec(module) is None:
        return f"{asked.name} {found}: expected its module {module}, found none"
    return ""


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# -- variables -------------------------------------------------------------------------

_IGNORED = {
    "MLFLOW_TRACKING_URI": "not read here: say tracking.uri= to train, --uri to others",
    "MLFLOW_EXPERIMENT_NAME": "not read here: say tracking.experiment=",
    "MLFLOW_RUN_ID": "not read here: every training is a run of its own",
}
# variable -> the largest value with which a server that is away is given up soon
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": 2,
    "MLFLOW_HTTP_REQUEST_TIMEOUT": 20,
}
_HARMLESS = {
    "AUTOPSY_ROOT": "the folder of all runs",
    "OMP_NUM_THREADS": "training takes its threads from the config's threads=",
}


def _variables() -> Iterator[Check]:
    """A row for each variable that is set and that somebody may count on."""
    rows = [*_ignored(), *_impatient(), *_blas()]
    for name, meaning in _HARMLESS.items():
        if value := os.environ.get(name):
            rows.append(Check(name, OK, f"{value}: {meaning}"))
    if not rows:
        rows = [Check("environment variables", OK, "none that changes anything")]
    yield from rows


def _ignored() -> Iterator[Check]:
    for name, meaning in _IGNORED.items():
        if os.environ.get(name):  # its value may hold a password
            yield Check(name, WARNING, f"set, and {meaning}", f"unset {name}")


def _impatient() -> Iterator[Check]:
    for name, most in _PATIENCE.items():
        value = os.environ.get(name)
        if value is None:
            continue
        if not value.isdigit():
            yield Check(name, PROBLEM, f"expected a number, found {value!r}")
        elif int(value) > most:
            found = f"{value}: a server that is away holds a call for long"
            yield Check(name, WARNING, found, f"at most {most}, or unset it")
        else:
            yield Check(name, OK, value)


def _blas() -> Iterator[Check]:
    name = "OPENBLAS_NUM_THREADS"
    value = os.environ.get(name, "1")
    if value != "1":
        found = f"{value}: sums are split, which changes a record's last bits"
        yield Check(name, WARNING, found, f"unset {name}")
