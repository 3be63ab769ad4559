"""Training with a server that answers, with none, and with one that goes away."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runners.compose import compose_config
from runners.execution import execute
from runners.store import default_uri, open_store
from runners.tracker import Tracker
from tests.bench.loops import bare
from tests.runners.commands import AUTOPSY, health, wait_for

LOST_RUNS = 5


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@contextmanager
def _server(root: Path, port: int) -> Iterator[subprocess.Popen]:
    """An MLflow server, once it answers."""
    command = [AUTOPSY, "ui", "--root", root, "--port", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    root.mkdir(parents=True, exist_ok=True)
    open_store(default_uri(root))
    server = subprocess.Popen(command, **quiet, start_new_session=True)
    try:
        wait_for(lambda: health(f"127.0.0.1:{port}"), seconds=90)
        yield server
    finally:
        _kill(server)
        server.wait()


def _kill(server: subprocess.Popen) -> None:
    """End the server with its workers, at once."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


class _Runs:
    """Runs of one kind of tracking, one after another, with one shipper."""

    def __init__(self, root: Path, steps: int, *choices: str) -> None:
        overrides = [f"paths.root={root}", f"steps={steps}", *choices]
        self._config = compose_config(overrides)
        self._tracker = Tracker(self._config.tracking, root)
        self.seconds()  # the shipper is up, caches are warm

    def seconds(self, on_step: Callable[..., None] = lambda *_: None) -> float:
        """Loop time of one run, from before step 0 until its last record is kept."""
        return execute(self._config, self._tracker, on_step).training_seconds

    def close(self) -> list[str]:
        """What the shipper could not do."""
        return [one.problem for one in self._tracker.close() if one.problem]


def against_bare(root: Path, steps: int, runs: int) -> dict[str, float]:
    """Median loop time by kind of tracking over that of the bare loop, in turns."""
    port = _free_port()
    with _server(root / "server", port):
        kinds = {
            "server_up": _Runs(
                root / "up", steps, f"tracking.uri=http://127.0.0.1:{port}"
            ),
            "server_down": _Runs(
                root / "down", steps, f"tracking.uri=http://127.0.0.1:{_free_port()}"
            ),
            "offline": _Runs(root / "offline", steps, "tracking=offline"),
        }
        bare(100)
        found: dict[str, list[float]] = {name: [] for name in ("bare", *kinds)}
        for _ in range(runs):
            found["bare"].append(bare(steps))
            for name, kind in kinds.items():
                found[name].append(kind.seconds())
        problems = {name: kind.close() for name, kind in kinds.items()}
    assert not problems["server_up"], problems
    assert len(problems["server_down"]) == runs + 1, problems
    base = statistics.median(found.pop("bare"))
    return {name: statistics.median(times) / base for name, times in found.items()}


def lost_against_up(root: Path, steps: int) -> float:
    """Loop time with a server that is killed half way over that with one that stays."""
    port, lost, up = _free_port(), [], []
    runs = None
    for _ in range(LOST_RUNS):
        with _server(root / "server", port) as server:
            runs = runs or _Runs(
                root / "lost", steps, f"tracking.uri=http://127.0.0.1:{port}"
            )
            time.sleep(1.0)  # the shipper has found it again

            def kill(name: str, step: int, *rest: object, server=server) -> None:
                if step == steps // 2:
                    _kill(server)

            measured = [(up, lambda *_: None), (lost, kill)]
            for times, on_step in measured:
                times.append(runs.seconds(on_step))
    with _server(root / "server", port):
        assert runs
        assert runs.close() == [], "every run is complete once the server is back"
    return statistics.median(lost) / statistics.median(up)
