"""The manifest: everything about a run that its record does not say.

It is written before step 0 and completed when the run closes.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from analysis.history import MANIFEST_VERSION
from analysis.rule import RuleParameters
from minigpt.corpus import split_hashes
from minigpt.tokenizer import TOKENIZER_PATH
from minigpt.training import Session
from runners.config import RunConfig, config_hash, to_plain
from runners.folders import VOCABULARY, iso_time, new_key
from runners.owner import owner
from runners.settings import redacted

_PROJECT = Path(__file__).resolve().parent.parent
_VERSIONS = ("torch", "numpy", "tokenizers", "safetensors", "hydra-core", "mlflow")


def open_manifest(
    config: RunConfig, session: Session, folder: Path, sweep: str | None
) -> dict[str, Any]:
    """The manifest of a run that is about to begin.

    Args:
        config: the resolved config.
        session: the live parts, not yet stepped.
        folder: the run folder; its name is the run's name.
        sweep: id of the sweep the run belongs to, if any.
    """
    return {
        "schema_version": MANIFEST_VERSION,
        "name": folder.name,
        "key": new_key(),
        "experiment": config.experiment,
        "sweep": sweep,
        "status": "running",
        "started_at": iso_time(),
        "ended_at": None,
        "error": None,
        "owner": owner(),
        "config": public_config(config),
        "tracking": public_config(config)["tracking"],
        "config_hash": config_hash(config),
        "code_hash": code_hash(),
        "git": git_facts(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in _VERSIONS},
        },
        "hardware": {
            "machine": platform.machine(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "threads": config.threads,
        },
        "data": {"corpus_sha256": split_hashes(), "tokenizer_sha256": _tokenizer()},
        "facts": run_facts(config, session),
        "shipping_rule": RuleParameters().to_json(),
        "record": None,
    }


def run_facts(config: RunConfig, session: Session) -> dict[str, Any]:
    """What a blind diagnosis may know of a run; the fault is not in it."""
    plain = to_plain(config)
    shapes = session.flat.shapes
    return {
        "optimizer": plain["optimizer"],
        "schedule": plain["schedule"],
        "clip": config.clip,
        "batch_size": config.loader.batch_size,
        "precision": config.precision.dtype,
        "seed": config.seed,
        "data_seed": config.data_seed,
        "tensors": {name: {"shape": list(shape)} for name, shape in shapes.items()},
        "sites": session.sites,
        "vocabulary": {"file": VOCABULARY, "sha256": _tokenizer()},
    }


def public_config(config: RunConfig) -> dict[str, Any]:
    """The resolved config without the password of a tracking URI."""
    plain = to_plain(config)
    if plain["tracking"]["uri"]:
        plain["tracking"]["uri"] = redacted(plain["tracking"]["uri"])
    return plain


@cache
def code_hash() -> str:
    """Hash of all that turns a config into a record: minigpt, torch and numpy."""
    digest = hashlib.sha256()
    package = _PROJECT / "minigpt"
    for path in sorted([*package.rglob("*.py"), TOKENIZER_PATH]):
        digest.update(path.relative_to(_PROJECT).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    for name in ("torch", "numpy"):
        digest.update(f"{name}=={version(name)}\0".encode())
    return digest.hexdigest()


@cache
def git_facts() -> dict[str, Any]:
    """Commit and dirty flag of the code, or why they are not known."""
    try:
        commit = _git("rev-parse", "HEAD")
        dirty = bool(_git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError) as error:
        return {"commit": None, "dirty": None, "reason": f"git: {error}"}
    return {"commit": commit, "dirty": dirty, "reason": None}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_PROJECT), *arguments]
    done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
        command, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@cache
def _tokenizer() -> str:
    return hashlib.sha256(TOKENIZER_PATH.read_bytes()).hexdigest()
