"""What a command or a reader pulls in, seen from a fresh process."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "mlflow", "hydra", "omegaconf")


def loaded(code, *arguments):
    """Lines of a process that runs the code; the last one, what heavy it then holds."""
    script = f"""
import sys
try:
    {code}
finally:
    print([name for name in {HEAVY} if name in sys.modules])
"""
    command = [sys.executable, "-c", script, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def analysis_modules():
    names = (path.stem for path in (ROOT / "analysis").glob("*.py"))
    return sorted(f"analysis.{name}" for name in names if name != "__init__")


def test_the_check_itself_sees_what_is_loaded():
    assert loaded("import omegaconf") == ["['omegaconf']"]


@pytest.mark.parametrize(
    "modules",
    [["minigpt"], ["minigpt.records"], analysis_modules(), ["loss_autopsy"]],
    ids=["minigpt", "records", "analysis", "loss_autopsy"],
)
def test_readers_need_no_training_stack(modules):
    assert loaded(f"import {', '.join(modules)}") == ["[]"]


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_the_command_answers_simple_questions_without_it(option):
    *answer, found = loaded("from runners.cli import main; main()", option)
    assert found == "[]"
    assert answer
