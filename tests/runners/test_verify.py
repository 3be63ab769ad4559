"""``autopsy verify``: the table, what the exit code stands on, and what is missing."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest
import yaml

from analysis.history import load
from analysis.parquet import sha256_of
from minigpt.records import TRAIN_LOSS
from runners import verify as module
from runners.compose import compose_config
from runners.config import config_hash
from runners.manifest import code_hash
from runners.settings import StoreError
from tests.runners.commands import run
from tests.runners.test_spec import CHECK, GAP, SPEC

STEPS = 30
FIXED, BROKEN = [f"steps={STEPS}", "seed=1"], [f"steps={STEPS}", "seed=2"]
BASELINE = [f"steps={STEPS}", "seed=3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Config hash -> folder of a finished run."""
    root = tmp_path_factory.mktemp("trained")
    runs = [FIXED, BROKEN, BASELINE]
    return {
        config_hash(compose_config(choices)): run(*choices, root=root).folder
        for choices in runs
    }


class _Found:
    """An MLflow run, as far as ``verify`` looks at it."""

    def __init__(self, run_id):
        self.info = self
        self.run_id = run_id


@pytest.fixture
def verify(autopsy, tmp_path, monkeypatch, trained):
    """The command on a spec, with a store that holds ``trained``."""

    def find(place, wanted, code):
        assert code == code_hash()
        return _Found(wanted) if wanted in trained else None

    monkeypatch.setattr(module, "find_by_config", find)
    monkeypatch.setattr(module, "pull", lambda run_id, place: trained[run_id])

    def call(*arguments, **changes):
        path = tmp_path / "spec.yaml"
        spec = SPEC | {"roles": {"fixed": [FIXED]}} | changes
        path.write_text(yaml.safe_dump(spec, sort_keys=False))
        return autopsy("verify", path, *arguments)

    return call


def checks(*limits):
    """One check a limit: the loss of step 1 is 6.2 or so."""
    return [
        CHECK | {"code": f"VF{i}", "limit": limit} for i, limit in enumerate(limits)
    ]


def test_a_spec_that_holds_ends_with_0(verify):
    answer = verify(checks=checks(9.0, 8.0))
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.count("passed 6.2333 (step 1)") == 2


def test_one_failed_check_ends_with_1(verify):
    answer = verify(checks=checks(9.0, 5.0))
    assert answer.code == 1
    assert answer.out.count("passed 6.2") == answer.out.count("failed 6.2") == 1


def test_the_table_names_spec_checks_roles_and_runs(verify, trained):
    answer = verify(roles={"fixed": [FIXED], "broken": [BROKEN]}, checks=checks(9.0))
    heads = ["a-spec: Something.", "VF0", "loss at step 1 below 9", "fixed", "broken"]
    heads += ["none-clip1.0-random-s1-n30", "none-clip1.0-random-s2-n30"]
    assert all(head in answer.out for head in heads)
    assert "-s3-" not in answer.out


def test_the_exit_code_is_about_the_fixed_runs(verify, trained):
    """Broken runs are there to fail: that shows that the check can."""
    last = {
        tuple(choices): load(trained[config_hash(compose_config(choices))]).scalar(
            TRAIN_LOSS
        )[-1]
        for choices in (FIXED, BROKEN)
    }
    better, worse = (list(choices) for choices in sorted(last, key=last.get))
    between = CHECK | {"window": [29, 29], "limit": float(sum(last.values())) / 2}
    held = verify(roles={"fixed": [better], "broken": [worse]}, checks=[between])
    assert (held.code, held.out.count(" failed ")) == (0, 1)
    not_held = verify(roles={"fixed": [worse], "broken": [better]}, checks=[between])
    assert (not_held.code, not_held.out.count(" passed ")) == (1, 1)


def test_without_a_fixed_role_all_runs_count(verify):
    roles = {"one": [FIXED], "other": [BROKEN]}
    assert verify(roles=roles, checks=checks(9.0)).code == 0
    assert verify(roles=roles, checks=checks(5.0)).code == 1


def test_a_window_beyond_the_record_is_inconclusive_and_ends_with_3(verify):
    answer = verify(checks=[CHECK | {"window": [30, 30]}])
    assert answer.code == 3
    assert "inconclusive" in answer.out
    assert "the record ends at step 29" in answer.out


def test_a_failed_check_weighs_more_than_an_inconclusive_one(verify):
    late = CHECK | {"code": "late", "window": [30, 30]}
    assert verify(checks=[*checks(5.0), late]).code == 1


def test_the_gap_is_to_the_run_of_the_baseline_role(verify):
    roles = {"fixed": [FIXED], "same": [BASELINE], "baseline": [BASELINE]}
    answer = verify(roles=roles, checks=[GAP | {"window": [0, 29], "limit": 9.0}])
    assert answer.code == 0
    assert "passed 0." in answer.out
    assert "the run is the baseline itself" in " ".join(
        answer.out.replace("│", "").split()
    )


def test_text_of_a_spec_is_shown_and_not_obeyed(verify):
    odd = [CHECK | {"claim": "a [bold]claim[/] [/x]", "unit": "[red]"}]
    answer = verify(name="[link=x]", verifies="[/bold] %s {}", checks=odd)
    assert answer.code == 0
    for text in ("a [bold]claim[/] [/x] ([red])", "[link=x]: [/bold] %s {}"):
        assert text in answer.out


def test_missing_runs_are_all_named_once_and_end_with_3(verify):
    roles = {"fixed": [FIXED, ["steps=31"]], "broken": [["steps=32", "seed=9"]]}
    answer = verify(roles=roles)
    assert answer.code == 3
    assert answer.line == (
        "autopsy: runs missing or stale: [steps=31] [steps=32 seed=9] no finished run"
    )


def test_a_record_that_was_changed_is_no_evidence(
    verify, trained, tmp_path, monkeypatch
):
    folder = shutil.copytree(
        trained[config_hash(compose_config(FIXED))], tmp_path / "x"
    )
    data = bytearray((folder / "record.parquet").read_bytes())
    data[1000] ^= 1
    (folder / "record.parquet").write_bytes(data)
    monkeypatch.setattr(module, "pull", lambda run_id, place: folder)
    answer = verify()
    assert answer.code == 3
    assert "expected sha256" in answer.line


@pytest.mark.parametrize(
    ("steps", "part"),
    [
        ([0, *range(2, STEPS)], "step 1: missing, found step 2 instead"),
        ([0, 1, 1, *range(2, STEPS)], "step 1: expected once, found again"),
        (list(range(STEPS)), ""),
    ],
    ids=["missing", "doubled", "whole"],
)
def test_steps_that_are_not_0_1_2_are_no_evidence(
    verify, trained, tmp_path, monkeypatch, steps, part
):
    """The hash agrees: whoever changed the steps knew how."""
    folder = shutil.copytree(
        trained[config_hash(compose_config(FIXED))], tmp_path / "x"
    )
    path = folder / "record.parquet"
    pq.write_table(pq.read_table(path).take(steps), path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["record"] = {"rows": len(steps), "sha256": sha256_of(path)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(module, "pull", lambda run_id, place: folder)
    answer = verify()
    assert answer.code == (3 if part else 0)
    assert part in answer.out + answer.err


def test_an_unknown_column_is_the_specs_mistake(verify):
    answer = verify(checks=[CHECK | {"column": "train/lss"}])
    assert answer.code == 2
    assert "expected column train/lss, found close: train/loss" in answer.line


def test_a_store_that_does_not_open_is_said_once(verify, monkeypatch):
    def find(*_):
        raise StoreError("MLflow store x: expected one that opens, found: garbage")

    monkeypatch.setattr(module, "find_by_config", find)
    answer = verify(roles={"fixed": [FIXED, BROKEN]})
    assert (answer.code, answer.line.count("MLflow store")) == (3, 1)


def test_a_disk_that_fails_is_not_a_failed_check(verify, monkeypatch):
    def pull(run_id, place):
        raise PermissionError(13, "Permission denied", "experiments/.pulled")

    monkeypatch.setattr(module, "pull", pull)
    answer = verify()
    assert answer.code == 3
    assert answer.line == (
        "autopsy: experiments/.pulled: expected to read and write it, "
        "found: Permission denied"
    )


def test_a_root_without_a_store_ends_with_3(autopsy):
    answer = autopsy("verify", "19-spike-001")
    assert answer.code == 3
    assert (
        "expected experiments/mlflow.db, found none; train a run first" in answer.line
    )


def test_a_bad_address_is_a_usage_error(autopsy):
    answer = autopsy("verify", "19-spike-001", "--uri", "./mlruns")
    assert answer.code == 2
    assert "migrate-filestore" in answer.line


def test_a_bug_of_ours_still_shows_its_trace(verify, monkeypatch):
    def find(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(module, "find_by_config", find)
    with pytest.raises(ZeroDivisionError):
        verify()
