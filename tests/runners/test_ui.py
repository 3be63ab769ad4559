"""``autopsy ui``: a real server on this machine only, and what a browser sees."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request

import pytest

from tests.runners.commands import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def health(address) -> str | None:
    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=2) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return None


def ask(address, path) -> str:
    with urllib.request.urlopen(f"http://{address}/{path}", timeout=20) as answer:
        return answer.read().decode()


def own_address() -> str | None:
    """An address of this machine that others could reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return probe.getsockname()[0]


def test_a_browser_finds_the_runs(spawn, shell, root, tmp_path, port, chromium):
    answer = shell("train", "-m", "name=first-run,second-run", "steps=20", "seed=3,4")
    assert answer.code == 0
    server = spawn("ui", "--port", port, start_new_session=True)
    local = f"127.0.0.1:{port}"
    wait_for(lambda: health(local), seconds=90)
    assert health(local) == "OK"
    if address := own_address():
        assert health(f"{address}:{port}") is None

    query = "ajax-api/2.0/mlflow/experiments/get-by-name?experiment_name=loss-autopsy"
    (experiment,) = re.findall(r'"experiment_id": "(\d+)"', ask(local, query))
    page = browse(chromium, f"http://{local}/#/experiments/{experiment}/runs", tmp_path)
    for name in ("first-run", "second-run", "first-run-2", "second-run-2"):
        assert name in page

    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=30) == 0
    assert health(local) is None
    with socket.create_server(("127.0.0.1", port)):
        pass  # nothing is left that listens


def browse(chromium, url, tmp_path) -> str:
    """The page as it is once its scripts have run."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    options += ["--disable-background-networking", "--disable-component-update"]
    options += ["--disable-sync", "--window-size=1600,1200", "--dump-dom"]
    options += [
        "--virtual-time-budget=20000",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    done = subprocess.run(
        [chromium, *options, url], capture_output=True, text=True, timeout=120
    )
    return done.stdout


def test_sigterm_ends_the_server_too(spawn, root, port):
    server = spawn("ui", "--port", port)
    wait_for(lambda: health(f"127.0.0.1:{port}"), seconds=90)
    server.terminate()
    server.communicate(timeout=30)
    assert server.returncode == 143
    assert health(f"127.0.0.1:{port}") is None


def test_a_password_is_not_in_the_process_list(spawn, root, port):
    uri = f"sqlite:///{root / 'mlflow.db'}?s3cret=1"
    server = spawn("ui", "--port", port, "--uri", uri)
    wait_for(lambda: health(f"127.0.0.1:{port}"), seconds=90)
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    others = [line for line in lines.splitlines() if " ui --port" not in line]
    assert not [line for line in others if "s3cret" in line]
    server.terminate()
    server.communicate(timeout=30)
