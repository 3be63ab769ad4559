"""Verification specs: what is read, and one line for everything that is not one."""

from __future__ import annotations

from copy import deepcopy

import pytest
import yaml

from minigpt.records import InputError
from runners.override_errors import CONF_DIR
from runners.spec import MAX_BYTES, read_spec

CHECK = {
    "code": "VF001",
    "claim": "loss at step 1 below 9",
    "kind": "max_in_window",
    "column": "train/loss",
    "window": [1, 1],
    "limit": 9.0,
}
SPEC = {
    "name": "a-spec",
    "verifies": "Something.",
    "roles": {"fixed": [["steps=2"]]},
    "checks": [CHECK],
}
GAP = CHECK | {"kind": "ema_gap_to_baseline"}


@pytest.fixture
def written(tmp_path):
    def write(content):
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        path = tmp_path / "spec.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refusal(reference) -> str:
    with pytest.raises(InputError) as caught:
        read_spec(reference)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    return message


@pytest.mark.parametrize(
    "name", [path.stem for path in (CONF_DIR / "verification").glob("*.yaml")]
)
def test_every_spec_of_conf_is_one(name):
    spec = read_spec(name)
    assert spec.name == name
    assert spec.checks
    assert "baseline" in spec.roles


def test_a_spec_is_what_its_file_says(written):
    spec = read_spec(
        written(SPEC | {"roles": {"a": [["seed=1"]], "fixed": [["seed=2"]]}})
    )
    assert (spec.name, spec.verifies) == ("a-spec", "Something.")
    assert spec.roles == {"a": [["seed=1"]], "fixed": [["seed=2"]]}
    assert [check.code for check in spec.checks] == ["VF001"]


@pytest.mark.parametrize(
    "reference", ["nope", "a/b", "x.yaml", "", "..", "x" * 5000, "/"]
)
def test_a_spec_that_is_not_there_lists_those_that_are(reference):
    assert "found neither" in refusal(reference)
    assert "19-spike-001" in refusal(reference)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "found nothing"),
        ("a: [", "expected YAML, found"),
        ("- a\n- b", "expected the keys checks, name, roles, verifies"),
        ("5", "found 5"),
        ("name: x\nname: y", "the key name 2 times"),
        ("name: {a: 1, b: 2, a: 3}", "the key a 2 times"),
        ("? [1, 2]\n: 3", "expected YAML, found"),
        (
            "!!python/object/apply:os.system ['true']",
            "could not determine a constructor",
        ),
        ("[" * 5000, "expected YAML, found"),
        ("a: &a [1, 2]\nb: *c", "undefined alias"),
        ("x: \x00", "expected YAML"),
        ("name: x\nroles: {}\nchecks: []", "found ['name', 'roles', 'checks']"),
    ],
)
def test_a_file_that_is_no_spec_says_what_it_is(written, text, part):
    assert part in refusal(written(text))


def test_a_file_of_other_bytes_is_no_spec(tmp_path):
    (tmp_path / "s.yaml").write_bytes(b"\xff\xfe\x00\x01")
    assert "expected YAML" in refusal(str(tmp_path / "s.yaml"))


def test_a_huge_file_is_not_even_read(written):
    assert f"{MAX_BYTES + 1} bytes" in refusal(written("#" * (MAX_BYTES + 1)))


def test_aliases_of_aliases_do_not_fill_the_screen(written):
    """Nine to the power of eight entries in a file of ten lines."""
    lines = ["roles:", "  a0: &a0 [x, x]"]
    for i in range(1, 9):
        lines.append(f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]")
    lines += ["name: *a8", "verifies: y", "checks: []"]
    assert "name: expected text, got [[[" in refusal(written("\n".join(lines)))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"name": 5}, "name: expected text, got 5"),
        ({"name": " "}, "name: expected text"),
        ({"verifies": None}, "verifies: expected text, got nothing"),
        ({"extra": 1}, "found ['checks'"),
        ({"checks": []}, "checks: expected a list of checks"),
        ({"checks": {"a": 1}}, "checks: expected a list of checks"),
        ({"checks": ["VF001"]}, "checks: expected keys and values, got VF001"),
        ({"checks": [CHECK, CHECK]}, "check VF001: expected a code once, found 2"),
        (
            {"checks": [CHECK | {"window": [3, 1]}]},
            "check VF001: window: expected first <=",
        ),
        (
            {"checks": [CHECK | {"limit": float("nan")}]},
            "limit: expected a finite number",
        ),
        ({"checks": [{"code": "X"}]}, "check X: window: expected [first, last]"),
        ({"roles": None}, "roles: expected role -> list of runs, got nothing"),
        ({"roles": []}, "roles: expected role -> list of runs"),
        ({"roles": {}}, "roles: expected role -> list of runs"),
        ({"roles": {5: [["seed=1"]]}}, "roles: expected names, got 5"),
        ({"roles": {"": [["seed=1"]]}}, "roles: expected names"),
        ({"roles": {"fixed": []}}, "roles: fixed: expected a list of runs"),
        ({"roles": {"fixed": "seed=1"}}, "roles: fixed: expected a list of runs"),
        (
            {"roles": {"fixed": ["seed=1"]}},
            "fixed: expected a list of overrides such as",
        ),
        ({"roles": {"fixed": [[]]}}, "fixed: expected a list of overrides"),
        ({"roles": {"fixed": [[5]]}}, "fixed: expected a list of overrides"),
        ({"roles": {"fixed": [[{"seed": 1}]]}}, "fixed: expected a list of overrides"),
        ({"roles": {"fixed": [[None]]}}, "fixed: expected a list of overrides"),
        ({"roles": {"fixed": [["sed=1"]]}}, "run [sed=1]: sed: no such key"),
        ({"roles": {"fixed": [["seed=1,2"]]}}, "run [seed=1,2]: seed: 1,2 is a sweep"),
        ({"roles": {"fixed": [["clip=0"]]}}, "run [clip=0]: clip: expected a finite"),
        ({"roles": {"fixed": [["experiment=x"]]}}, "experiment: expected one of"),
        ({"roles": {"fixed": [["seed=1"], ["seed=1"]]}}, "expected each run once"),
        ({"roles": {"baseline": [["seed=1"]]}}, "expected one besides the baseline"),
        ({"checks": [GAP]}, "expected a role baseline with one run, for VF001"),
        (
            {
                "checks": [GAP],
                "roles": {"a": [["seed=1"]], "baseline": [["seed=2"], ["seed=3"]]},
            },
            "compares with it; found 2 runs",
        ),
    ],
)
def test_a_wrong_part_is_named_with_what_was_expected(written, change, part):
    message = refusal(written(deepcopy(SPEC) | change))
    assert part in message
    assert message.startswith("spec ")


def test_a_spec_without_a_fixed_run_is_one(written):
    assert read_spec(written(SPEC | {"roles": {"broken": [["seed=1"]]}})).roles


def test_a_folder_is_no_spec(tmp_path):
    (tmp_path / "x.yaml").mkdir()
    assert "found neither" in refusal(str(tmp_path / "x.yaml"))
