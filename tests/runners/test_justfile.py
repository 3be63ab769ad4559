"""The lab page's own spelling of a training command."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from runners.override_errors import CONF_DIR
from tests.runners.commands import AUTOPSY

PROJECT = CONF_DIR.parent
JUST = AUTOPSY.with_name("just")


def just(*arguments, cwd, **variables) -> subprocess.CompletedProcess[str]:
    command = [JUST, "--justfile", PROJECT / "justfile", "--working-directory", cwd]
    return subprocess.run(
        [*command, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )


def command_of(done) -> str:
    """What just says it would run."""
    assert done.returncode == 0, done.stderr
    return done.stderr.strip()


def test_the_pages_spelling_trains(tmp_path):
    choices = {"seed": "7", "injection": "scale", "injection_step": "1"}
    arguments = ("phase-19-train", "steps=2", "tracking=none")
    done = just(*arguments, cwd=tmp_path, **choices)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "experiments").iterdir()
    assert folder.name == "scale-clip1.0-random-s7-k1-n2"
    config = json.loads((folder / "manifest.json").read_text())["config"]
    assert (config["seed"], config["injection_step"], config["steps"]) == (7, 1, 2)


def test_without_variables_it_is_the_healthy_run_of_seed_42(tmp_path):
    line = command_of(just("--dry-run", "phase-19-train", cwd=tmp_path))
    assert line.endswith("train seed='42' injection='none' injection_step='500'")
    assert line.startswith(str(PROJECT))


def test_what_a_variable_holds_is_one_argument(tmp_path):
    dry = just("--dry-run", "phase-19-train", cwd=tmp_path, seed="7; touch x")
    assert "seed='7; touch x'" in command_of(dry)


def test_a_mistake_comes_out_with_its_exit_code(tmp_path):
    done = just("phase-19-train", cwd=tmp_path, injection="scal")
    assert done.returncode == 2
    assert "did you mean scale?" in done.stderr
    assert list(Path(tmp_path).iterdir()) == []


def test_the_recipe_is_listed_with_what_it_does(tmp_path):
    listed = just("--list", cwd=tmp_path).stdout
    assert "phase-19-train" in listed
    assert "# Train one run of phase 19" in listed


@pytest.mark.parametrize("name", ["seed", "injection", "injection_step"])
def test_the_variables_are_those_of_the_page(tmp_path, name):
    assert name in just("--evaluate", cwd=tmp_path).stdout
