"""What every test stands on: clean surroundings, and no silent skips where asked."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

# As the command itself does, before numpy is imported: see runners/cli.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

CLONE = Path(__file__).parents[1]

# A shell starts background jobs with SIGINT ignored, and so would be every process
# that a test sends one to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_working_folder(tmp_path_factory, monkeypatch):
    """Relative paths of a test lead into a folder of its own."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
    monkeypatch.delenv("AUTOPSY_ROOT", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(autouse=True)
def _no_run_left_open():
    """A test that leaves a run of MLflow open would hand it to the next one."""
    yield
    mlflow = sys.modules.get("mlflow")
    assert mlflow is None or mlflow.active_run() is None


@pytest.fixture(scope="session", autouse=True)
def _clean_clone():
    """What MLflow makes in a working folder is in none of the clone's."""
    before = _strays()
    yield
    assert _strays() == before


def _strays() -> set[Path]:
    """Stores and artifacts in the clone, but for the folder of real runs."""
    names = ("mlflow.db", "mlruns", "mlartifacts")
    found = (path for name in names for path in CLONE.glob(f"**/{name}"))
    own = (CLONE / "experiments", CLONE / ".venv")
    return {path for path in found if not any(map(path.is_relative_to, own))}


@pytest.fixture
def chromium() -> str:
    """Path of the browser, which the system package `chromium` brings."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs the system package chromium")
    return path


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server of its own, which the system package `postgresql` brings."""
    from tests.runners.postgres import Server, programs

    if programs() is None:
        pytest.skip("needs the system package postgresql")
    server = Server()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """With AUTOPSY_NO_SKIPS a test that skips has failed."""
    report = yield
    if report.skipped and os.environ.get("AUTOPSY_NO_SKIPS"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is not allowed here: {report.longrepr}"
    return report
