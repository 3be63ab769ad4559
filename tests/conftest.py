"""What every test stands on: clean surroundings, and no silent skips where asked."""

from __future__ import annotations

import os
import shutil
import signal

# As the command itself does, before numpy is imported: see runners/cli.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

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


@pytest.fixture
def chromium() -> str:
    """Path of the browser, which the system package `chromium` brings."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs the system package chromium")
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """With AUTOPSY_NO_SKIPS a test that skips has failed."""
    report = yield
    if report.skipped and os.environ.get("AUTOPSY_NO_SKIPS"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is not allowed here: {report.longrepr}"
    return report
