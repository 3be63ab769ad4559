"""``autopsy ui``: a real server on this machine only, and what a browser sees."""

from __future__ import annotations

import signal
import socket
import sqlite3
import subprocess
from itertools import product
from types import SimpleNamespace

import pytest

from runners.ui import _views
from tests.runners.commands import health


def own_address() -> str | None:
    """An address of this machine that others could reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        return probe.getsockname()[0]


def browse(chromium, url, tmp_path) -> str:
    """The page as it is once its scripts have run."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    options += ["--disable-background-networking", "--disable-component-update"]
    options += ["--disable-sync", "--window-size=1600,1200", "--dump-dom"]
    options += [f"--user-data-dir={tmp_path / 'profile'}"]
    command = [chromium, *options, "--virtual-time-budget=20000", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout


class Client:
    """A store with three experiments; one was never trained in, one has no view."""

    def search_experiments(self):
        tags = {"mlflow.sharedViewState.loss-autopsy": "{}"}
        return [
            SimpleNamespace(name="Default", experiment_id="0", tags={}),
            SimpleNamespace(name="lab", experiment_id="7", tags=tags | {"a": "b"}),
            SimpleNamespace(name="x", experiment_id="8", tags={"mlflow.shared": "{}"}),
        ]


def test_the_addresses_of_the_views_are_printed():
    assert list(_views(Client(), "http://127.0.0.1:5000/")) == [
        "lab, its runs as a table: http://127.0.0.1:5000/#/experiments/7/runs"
        "?viewStateShareKey=loss-autopsy&workflowType=machine_learning",
        "lab, their curves: http://127.0.0.1:5000/#/experiments/7/runs"
        "?viewStateShareKey=loss-autopsy&compareRunsMode=CHART"
        "&workflowType=machine_learning",
    ]


@pytest.mark.slow
def test_a_browser_finds_the_runs(serve, shell, root, tmp_path, port, chromium):
    assert shell("train", "name=alone", "steps=2").code == 0
    grid = ("injection=none,scale", "clip=0.5,1.0", "steps=2", "injection_step=1")
    assert shell("train", "-m", *grid).code == 0
    serve()
    with sqlite3.connect(root / "mlflow.db") as database:
        query = "SELECT run_uuid, name, experiment_id FROM runs JOIN tags "
        query += "USING (run_uuid) WHERE key = 'sweep_parent'"
        ((parent, title, experiment),) = database.execute(query)
    runs = f"http://127.0.0.1:{port}/#/experiments/{experiment}/runs"

    page = browse(chromium, runs, tmp_path)
    assert ">alone<" in page
    assert title in page  # MLflow folds the runs of a sweep under their parent

    page = browse(chromium, f"{runs}/{parent}", tmp_path)
    for injection, clip in product(("none", "scale-k1"), ("0.5", "1.0")):
        kind, _, at = injection.partition("-")
        parts = (kind, f"clip{clip}", "random", "s42", *[at] * bool(at), "n2")
        assert f">{'-'.join(parts)}<" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)]
)
def test_it_serves_this_machine_only_until_a_signal(serve, root, port, number, code):
    server = serve("--uri", f"sqlite:///{root / 'mlflow.db'}?s3cret=1")
    assert health(f"127.0.0.1:{port}") == "OK"
    if address := own_address():
        assert health(f"{address}:{port}") is None
    started = processes_below(server.pid)
    assert started
    assert not [pid for pid in started if "s3cret" in command_line(pid)]

    server.send_signal(number)
    assert server.wait(timeout=30) == code
    assert health(f"127.0.0.1:{port}") is None
    assert not [pid for pid in started if alive(pid)]


def processes_below(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = [int(child) for child in file.read().split()]
    return children + [below for child in children for below in processes_below(child)]


def command_line(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
