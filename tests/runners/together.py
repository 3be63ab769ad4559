"""Processes that meet: runs of the command, or openings of a store, all at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.runners.commands import AUTOPSY, Answer

_PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

# Says when it is ready, opens the store when it is told to, and then stays.
_OPEN = """
import sys
from pathlib import Path
from runners.store import ensure_experiment, open_store
print("ready", flush=True)
sys.stdin.readline()
client = open_store(sys.argv[1])
print(ensure_experiment(client, sys.argv[1], "lab", Path(".")), flush=True)
sys.stdin.readline()
"""


def experiments_made_at_once(
    uri: str, count: int, meanwhile: Callable[[], object] = lambda: None
) -> tuple[list[str], object]:
    """What each process has as the id of one experiment, and a look at them then."""
    command = [sys.executable, "-c", _OPEN, uri]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, **_PIPES) for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        ids = [process.stdout.readline().strip() for process in started]
        seen = meanwhile()
    finally:
        answers = [process.communicate("\n", timeout=200) for process in started]
    assert [process.returncode for process in started] == [0] * count, answers
    return ids, seen


def train_at_once(
    count: int, folder: Path, uri: str, meanwhile: Callable[[], object] = lambda: None
) -> list[Answer]:
    """Runs of 60 steps, named r0, r1 and so on; ``meanwhile`` is called while they do.

    Raises:
        AssertionError: one of them did not finish, or is not complete in MLflow.
    """
    started = [
        subprocess.Popen(
            [AUTOPSY, "train", f"name=r{seed}", f"seed={seed}", "steps=60",
             f"tracking.uri='{uri}'"],
            cwd=folder,
            **_PIPES,
        )
        for seed in range(count)
    ]  # fmt: skip
    answers = []
    for process in started:
        while process.poll() is None:
            meanwhile()
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        answers.append(Answer(process.returncode, *process.communicate()))
    assert [answer.code for answer in answers] == [0] * count, answers
    for path in folder.glob("experiments/r*/mlflow.json"):
        assert json.loads(path.read_text())["complete"], path
    assert len(list(folder.glob("experiments/r*/mlflow.json"))) == count
    return answers
