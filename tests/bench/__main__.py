"""`make bench`: what recording and tracking cost, one JSON line a figure.

Ratios are medians over alternating runs in one process, so that a slow moment of
the machine meets both sides. The exit code is 0 also where a goal is missed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from analysis.dashboard.pages import draw_dashboard
from analysis.history import load
from minigpt.records import TIME_WALL
from runners.compose import compose_config
from runners.execution import execute
from runners.tracker import Tracker
from tests.analysis.dashboard.long_run import long_run
from tests.bench.loops import bare, watched
from tests.bench.servers import against_bare, lost_against_up

RUNS = 7
STEPS = 1000
MLFLOW_RUNS, MLFLOW_STEPS = 3, 200


def main() -> None:
    """Print every figure; say at the end which goals were missed."""
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for figure in (
            tracked_vs_bare(Path(folder) / "tracked"),
            watch_vs_bare(),
            *servers(Path(folder) / "servers"),
            mlflow_per_step_vs_bare(Path(folder) / "mlflow"),
            *whole_command(Path(folder) / "command"),
            *dashboards(Path(folder) / "command" / "bench"),
        ):
            print(json.dumps(figure), flush=True)
            if figure["goal"] is not None and figure["value"] > figure["goal"]:
                missed.append(figure["figure"])
    print(f"goals missed: {', '.join(missed) or 'none'}")


def _figure(name: str, value: float, unit: str, goal: float | None) -> dict:
    return {"figure": name, "value": round(value, 4), "unit": unit, "goal": goal}


def _ratio(one: Callable[[], float], other: Callable[[], float], runs: int) -> float:
    """Median of ``one`` over median of ``other``, taken in turns."""
    pairs = [(one(), other()) for _ in range(runs)]
    ones, others = zip(*pairs, strict=True)
    return statistics.median(ones) / statistics.median(others)


def tracked_vs_bare(root: Path) -> dict:
    """The product as it is: full record, journal, checkpoints, live curves."""
    config = compose_config([f"paths.root={root}", f"steps={STEPS}"])
    tracker = Tracker(config.tracking, root)
    execute(config, tracker, lambda *_: None)  # the shipper is up, caches are warm
    while not list(root.glob("*/mlflow.json")):
        time.sleep(0.2)

    def tracked() -> float:
        return execute(config, tracker, lambda *_: None).training_seconds

    bare(100)
    value = _ratio(tracked, lambda: bare(STEPS), RUNS)
    problems = [answer.problem for answer in tracker.close() if answer.problem]
    assert not problems, problems
    return _figure("tracked_vs_bare", value, "ratio", 1.10)


def watch_vs_bare() -> dict:
    """The observer on a module and optimizer that it does not own."""
    value = _ratio(lambda: watched(STEPS), lambda: bare(STEPS), RUNS)
    return _figure("watch_vs_bare", value, "ratio", 1.30)


def servers(root: Path) -> list[dict]:
    """Whatever the server does, the loop does not wait for it."""
    found = against_bare(root / "kinds", STEPS, RUNS)
    lost = lost_against_up(root / "lost", STEPS)
    return [
        *(_figure(f"{k}_vs_bare", value, "ratio", 1.10) for k, value in found.items()),
        _figure("server_lost_vs_up", lost, "ratio", 1.05),
    ]


def mlflow_per_step_vs_bare(root: Path) -> dict:
    """What people do otherwise: twelve scalars a step by mlflow.log_metrics."""
    import mlflow

    from runners.store import default_uri, open_store

    root.mkdir()
    uri = default_uri(root)
    open_store(uri)
    mlflow.set_tracking_uri(uri)

    def logged() -> float:
        with mlflow.start_run():
            return bare(MLFLOW_STEPS, _log_twelve)

    def _log_twelve(step: int, loss: float) -> None:
        mlflow.log_metrics({f"metric_{i}": loss for i in range(12)}, step=step)

    value = _ratio(logged, lambda: bare(MLFLOW_STEPS), MLFLOW_RUNS)
    return _figure("mlflow_per_step_vs_bare", value, "ratio", None)


def whole_command(root: Path) -> list[dict]:
    """`autopsy train` from the shell: before step 0, after the last, on disk."""
    command = [str(Path(sys.executable).with_name("autopsy")), "train", "name=bench"]
    began = time.time()
    done = subprocess.run([*command, f"paths.root={root}"], capture_output=True)
    ended = time.time()
    assert done.returncode == 0, done.stderr
    wall = load(root / "bench").scalar(TIME_WALL)
    size = sum(f.stat().st_size for f in (root / "bench").rglob("*") if f.is_file())
    return [
        _figure("startup", wall[0] - began, "s", None),
        _figure("closing", ended - wall[-1], "s", None),
        _figure("disk_per_run", size, "bytes", None),
    ]


def dashboards(folder: Path) -> list[dict]:
    """Drawing time and size of a page: 2,000 steps with a baseline, 1,000,000 steps."""
    run = load(folder)
    draw_dashboard(run, run)  # the template and the scripts are read
    short = _drawn("dashboard_2000", lambda: draw_dashboard(run, run), 3e6)
    million = long_run(1_000_000, tensors=28)
    return short + _drawn("dashboard_1000000", lambda: draw_dashboard(million), 6e6)


def _drawn(name: str, draw: Callable[[], str], most: float) -> list[dict]:
    began = time.perf_counter()
    size = len(draw().encode())
    seconds = time.perf_counter() - began
    return [
        _figure(f"{name}_drawing", seconds, "s", None),
        _figure(f"{name}_size", size, "bytes", most),
    ]


if __name__ == "__main__":
    main()
