"""Verification specs: a YAML file read, and refused in one line where it is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from analysis.verification import COMPARING, Check, brief, check_from_plain
from minigpt.records import InputError
from runners.compose import compose_config
from runners.config import RunConfig
from runners.override_errors import CONF_DIR

BASELINE = "baseline"
MAX_BYTES = 1 << 20
_KEYS = {"name", "verifies", "roles", "checks"}


@dataclass(frozen=True)
class Spec:
    """A verification spec.

    Attributes:
        name: of the spec.
        verifies: the claim it is about.
        roles: role -> its runs, each a list of Hydra overrides.
        checks: in the order of the file.
    """

    name: str
    verifies: str
    roles: dict[str, list[list[str]]]
    checks: list[Check]


def read_spec(reference: str) -> Spec:
    """A spec by its name in conf/verification, or by the path of a file.

    Raises:
        InputError: no such spec, or not a spec.
    """
    path = _find(reference)
    plain = _read(path)
    if not isinstance(plain, dict) or plain.keys() != _KEYS:
        raise InputError(
            f"spec {path}: expected the keys {', '.join(sorted(_KEYS))}; "
            f"found {brief(list(plain) if isinstance(plain, dict) else plain)}"
        )
    try:
        for key in ("name", "verifies"):
            if not (isinstance(plain[key], str) and plain[key].strip()):
                raise InputError(f"{key}: expected text, got {brief(plain[key])}")
        checks = _checks(plain["checks"])
        _check_roles(plain["roles"], checks)
    except InputError as error:
        raise InputError(f"spec {path}: {error}") from None
    return Spec(plain["name"], plain["verifies"], plain["roles"], checks)


def compose_run(overrides: list[str]) -> RunConfig:
    """The config of one run of a role.

    Raises:
        InputError: the overrides make no run.
    """
    try:
        return _composed(tuple(overrides))
    except InputError as error:
        raise InputError(f"run [{' '.join(overrides)}]: {error}") from None


@cache
def _composed(overrides: tuple[str, ...]) -> RunConfig:
    return compose_config(overrides)


def _find(reference: str) -> Path:
    folder = CONF_DIR / "verification"
    if "/" in reference or reference.endswith((".yaml", ".yml")):
        path = Path(reference)
    else:
        path = folder / f"{reference}.yaml"
    try:
        found = path.is_file()
    except OSError:  # a path that the system does not take
        found = False
    if not found:
        names = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        raise InputError(
            f"spec {reference:.200}: expected a YAML file or one of {names}; "
            "found neither"
        )
    return path


def _read(path: Path) -> Any:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ValueError(f"{size} bytes")
        return _NoDoubles(path.read_text("utf-8")).get_single_data()
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"spec {path}: expected YAML, found {reason:.300}") from None


class _NoDoubles(yaml.SafeLoader):
    """The safe loader, except that it refuses a key that is given twice."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, Any]:
        keys = Counter(str(key.value) for key, _ in node.value)
        if len(keys) < len(node.value):
            [(key, count)] = keys.most_common(1)
            raise yaml.YAMLError(f"the key {key} {count} times,{node.start_mark}")
        return super().construct_mapping(node, deep)


def _checks(plain: Any) -> list[Check]:
    if not (isinstance(plain, list) and plain):
        raise InputError(f"checks: expected a list of checks, got {brief(plain)}")
    checks = [check_from_plain(entry) for entry in plain]
    [(code, count)] = Counter(check.code for check in checks).most_common(1)
    if count > 1:
        raise InputError(f"check {code}: expected a code once, found {count} of it")
    return checks


def _check_roles(roles: Any, checks: list[Check]) -> None:
    if not (isinstance(roles, dict) and roles):
        raise InputError(f"roles: expected role -> list of runs, got {brief(roles)}")
    for role, runs in roles.items():
        if not (isinstance(role, str) and role.strip()):
            raise InputError(f"roles: expected names, got {brief(role)}")
        _check_runs(role, runs)
    if not roles.keys() - {BASELINE}:
        raise InputError("roles: expected one besides the baseline, found none")
    compared = [check.code for check in checks if check.kind in COMPARING]
    if compared and len(roles.get(BASELINE, ())) != 1:
        raise InputError(
            f"roles: expected a role {BASELINE} with one run, for {compared[0]} "
            f"compares with it; found {len(roles.get(BASELINE, ()))} runs"
        )


def _check_runs(role: str, runs: Any) -> None:
    if not (isinstance(runs, list) and runs):
        raise InputError(
            f"roles: {role}: expected a list of runs, each a list of overrides; "
            f"got {brief(runs)}"
        )
    for run in runs:
        whole = isinstance(run, list) and all(isinstance(one, str) for one in run)
        if not (whole and run):
            raise InputError(
                f"roles: {role}: expected a list of overrides such as [seed=1], "
                f"got {brief(run)}"
            )
        if runs.count(run) > 1:
            raise InputError(f"roles: {role}: expected each run once, got {run} twice")
        compose_run(run)
