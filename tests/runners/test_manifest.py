"""The manifest: there before step 0, complete, and without a secret or the fault."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from analysis.facts import facts_of_manifest
from analysis.rule import RuleParameters
from minigpt.corpus import split_hashes
from runners import manifest as module
from runners.compose import compose_config
from runners.config import config_hash, to_plain
from runners.folders import iso_time
from runners.manifest import code_hash, git_facts
from runners.settings import redacted
from tests.runners.commands import run


@pytest.fixture(scope="module")
def manifest(finished) -> dict:
    return json.loads((finished.folder / "manifest.json").read_text())


def test_it_is_there_before_step_0_with_all_that_was_chosen(tmp_path):
    seen = []

    def look(name, step, steps, loss):
        seen.append(json.loads((tmp_path / name / "manifest.json").read_text()))

    run(
        "steps=2",
        "name=x",
        "injection=scale",
        "injection_step=1",
        root=tmp_path,
        on_step=look,
    )
    first = seen[0]
    assert (first["status"], first["record"], first["ended_at"]) == (
        "running",
        None,
        None,
    )
    closed = json.loads((tmp_path / "x" / "manifest.json").read_text())
    changed = {key for key in closed if closed[key] != first[key]}
    assert changed == {"status", "ended_at", "record", "data"}
    found = closed["data"].pop("loader_violations")
    assert (closed["data"], found) == (first["data"], {})


def test_it_says_what_the_run_was_made_of(manifest, finished):
    config = compose_config(["steps=30", "name=healthy", "checkpoint.every=10"])
    told = dict(manifest["config"])
    assert told.pop("paths")["root"] == str(finished.folder.parent)
    assert told.pop("tracking")["kind"] == "none"
    expected = to_plain(config)
    assert told == {key: expected[key] for key in told}
    assert manifest["config_hash"] == config_hash(config)
    assert manifest["shipping_rule"] == RuleParameters().to_json()
    assert manifest["data"]["corpus_sha256"] == split_hashes()
    assert manifest["hardware"]["threads"] == 1


def test_the_config_beside_it_is_the_same_for_people(manifest, finished):
    text = (finished.folder / "config.yaml").read_text()
    assert yaml.safe_load(text) == manifest["config"]


def test_it_names_the_versions_that_ran(manifest):
    versions = dict(manifest["versions"])
    assert versions.pop("python") == platform.python_version()
    assert versions == {name: version(name) for name in versions}
    assert versions.keys() >= {"torch", "numpy", "tokenizers", "hydra-core", "mlflow"}


def test_times_are_in_utc_and_in_order(manifest):
    start, end = (
        datetime.fromisoformat(manifest[k]) for k in ("started_at", "ended_at")
    )
    assert start.utcoffset() == timedelta(0)
    assert start < end < datetime.now(UTC)
    assert iso_time(0.25) == "1970-01-01T00:00:00.250+00:00"


def test_a_blind_diagnosis_learns_the_settings_and_not_the_fault(tmp_path):
    """``facts`` is all that the diagnosis may read; the fault must not be in it."""
    result = run("steps=2", "injection=v_corrupt", "injection_step=1", root=tmp_path)
    manifest = json.loads((result.folder / "manifest.json").read_text())
    text = json.dumps(manifest["facts"])
    assert not any(
        word in text for word in ("injection", "v_corrupt", "factor", "100.0")
    )
    facts = facts_of_manifest(manifest)
    assert facts.unknown == ()
    assert (facts.clip, facts.batch_size, facts.beta2, facts.seed) == (1.0, 8, 0.95, 42)
    assert facts.tensors["lm_head.bias"] == {"shape": [512]}


# -- secrets ---------------------------------------------------------------------------


def test_a_password_is_written_nowhere(tmp_path):
    uri = "+tracking.uri=postgresql://me:s3cret@host/db"
    folder = run("steps=1", uri, root=tmp_path).folder
    written = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert b"postgresql://***@host/db" in written[folder / "manifest.json"]
    assert not [path for path, data in written.items() if b"s3cret" in data]


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://me:s3cret@host/db", "postgresql://***@host/db"),
        (
            "postgresql+psycopg://me:s3@cret@host:5/db",
            "postgresql+psycopg://***@host:5/db",
        ),
        ("https://me:s3cret@host", "https://***@host"),
        ("https://host/a", "https://host/a"),
        ("postgresql://h/db?password=s3cret", "postgresql://h/db?password=***"),
        (
            "postgresql://me@h/db?a=1&sslPassword=x@y&b=2",
            "postgresql://***@h/db?a=1&sslPassword=***&b=2",
        ),
        ("sqlite:///me@home/mlflow.db", "sqlite:///me@home/mlflow.db"),
        ("tracking.uri='https://me:s3cret@host'", "tracking.uri='https://***@host'"),
    ],
)
def test_an_address_is_shown_without_user_and_password(uri, shown):
    assert redacted(uri) == shown


# -- the code --------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A copy of the package, hashed in place of the real one."""
    source = module._PROJECT / "minigpt"
    copy = shutil.copytree(source, tmp_path / "minigpt")
    monkeypatch.setattr(module, "_PROJECT", tmp_path)
    tokenizer = module.TOKENIZER_PATH.relative_to(source)
    monkeypatch.setattr(module, "TOKENIZER_PATH", copy / tokenizer)
    return copy


def fresh_hash() -> str:
    return code_hash.__wrapped__()


def test_a_copy_of_the_code_has_the_same_hash(project, manifest):
    assert fresh_hash() == code_hash() == manifest["code_hash"]


@pytest.mark.parametrize("name", ["model.py", "injections/scale.py", "tokenizer"])
def test_any_changed_source_changes_the_hash(project, name):
    path = module.TOKENIZER_PATH if name == "tokenizer" else project / name
    path.write_bytes(path.read_bytes() + b"\n")
    assert fresh_hash() != code_hash()


def test_a_moved_or_added_source_changes_the_hash(project):
    (project / "new.py").write_text("")
    added = fresh_hash()
    (project / "new.py").rename(project / "newer.py")  # sorted at the same place
    assert len({code_hash(), added, fresh_hash()}) == 3


def test_another_torch_changes_the_hash(project, monkeypatch):
    other = {"torch": "1.0"}
    monkeypatch.setattr(module, "version", lambda name: other.get(name, version(name)))
    assert fresh_hash() != code_hash()


def test_what_is_no_source_does_not_count(project):
    (project / "notes.txt").write_text("x")
    (project / "__pycache__").mkdir(exist_ok=True)
    (project / "__pycache__" / "model.pyc").write_bytes(b"x")
    assert fresh_hash() == code_hash()


def git(folder, *arguments):
    who = ["-c", "user.name=x", "-c", "user.email=x@x"]
    command = ["git", "-C", folder, *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_commit_and_whether_it_is_all(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PROJECT", tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "x")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    clean = {"commit": commit, "dirty": False, "reason": None}
    assert git_facts.__wrapped__() == clean
    (tmp_path / "a").write_text("2")
    assert git_facts.__wrapped__() == clean | {"dirty": True}


def test_code_outside_of_git_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PROJECT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    facts = git_facts.__wrapped__()
    assert (facts["commit"], facts["dirty"]) == (None, None)
    assert facts["reason"].startswith("git: ")


def test_a_machine_without_git_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert git_facts.__wrapped__()["reason"].startswith("git: ")
