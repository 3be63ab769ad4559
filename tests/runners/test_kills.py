"""Killed at any moment: closed, whole, and complete in MLflow after one sync."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from analysis.history import load
from minigpt.records import TIME_WALL
from runners.folders import run_folders
from tests.runners.commands import AUTOPSY, wait_for
from tests.runners.stored import expected_points, mlflow_points, mlflow_runs

KILLS = 30
AT_ONCE = 2
BEGINS_WITHIN = 1.5  # seconds between a manifest and the first step, two at once


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


def train_and_kill(root: Path, number: int) -> tuple[str, float]:
    """A run that is killed at some moment, every third one with its shipper."""
    chance = random.Random(number)
    command = [AUTOPSY, "train", f"name=k{number}", "steps=200000"]
    process = subprocess.Popen(
        [*command, "checkpoint.every=50", f"paths.root={root}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if number % 6:  # else at any moment of the start too
        wait_for((root / f"k{number}" / "manifest.json").is_file)
    time.sleep(chance.uniform(0.0, 4.0))
    doomed = children(process.pid) if number % 3 == 0 else []
    moment = time.time()
    process.kill()
    for child in doomed:
        os.kill(child, signal.SIGKILL)
    process.wait()
    return f"k{number}", moment


@pytest.mark.slow
def test_thirty_kills_lose_at_most_a_second_each(tmp_path):
    root = tmp_path / "experiments"
    with ThreadPoolExecutor(AT_ONCE) as pool:
        moments = dict(pool.map(lambda n: train_and_kill(root, n), range(KILLS)))
    synced = subprocess.run(
        [AUTOPSY, "sync", "--root", root], capture_output=True, text=True
    )
    assert (synced.returncode, synced.stderr) == (0, ""), synced.stdout
    folders = {folder.name: folder for folder in run_folders(root)}
    assert len(folders) > KILLS // 2  # the others died before they had a folder
    assert mlflow_runs(root) == dict.fromkeys(folders, "KILLED")
    recorded = 0
    for name, folder in folders.items():
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["status"] == "killed"
        began = datetime.fromisoformat(manifest["started_at"]).timestamp()
        if not manifest["record"]:
            assert moments[name] - began < BEGINS_WITHIN, name
            assert mlflow_points(root, name) == {}
            continue
        history = load(folder)
        assert "damage" not in " ".join(history.notes)
        assert mlflow_points(root, name) == expected_points(folder), name
        if len(history):
            recorded += 1
            assert moments[name] - history.scalar(TIME_WALL)[-1] < 1.0, name
        else:
            assert moments[name] - began < BEGINS_WITHIN, name
    assert recorded > KILLS // 3
    before = {name: mlflow_points(root, name) for name in folders}
    again = subprocess.run([AUTOPSY, "sync", "--root", root], capture_output=True)
    assert again.returncode == 0
    assert {name: mlflow_points(root, name) for name in folders} == before
