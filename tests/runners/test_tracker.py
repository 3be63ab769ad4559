"""The training side of tracking, against stand-ins for the shipper's process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.records import InputError
from runners import tracker as module
from runners.settings import TrackingConfig
from runners.tracker import Shipped, Tracker

RUN_ID = "ab" * 16

# What stands in for the shipper: it keeps what it is told in the file `told`.
_LISTEN = """
import json, sys
told = open("told", "w")
for line in sys.stdin:
    print(line, end="", file=told, flush=True)
"""
_ANSWER = f"""
import json, sys
sys.stdin.readline()
for line in sys.stdin:
    folder = json.loads(line).get("folder")
    if folder:
        answer = dict(folder=folder, run_id="{RUN_ID}", points=7)
        print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A tracker whose shipper runs this code."""
    monkeypatch.chdir(tmp_path)

    def start(code, **config):
        monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", code))
        return Tracker(TrackingConfig(**config), tmp_path / "runs")

    return start


def test_the_shipper_is_told_everything_in_order(start, tmp_path):
    tracker = start(_LISTEN, experiment="lab")
    tracker.begin_sweep(Path("runs/.sweeps/s-1"))
    tracker.follow(Path("runs/x"))
    tracker.attach(Path("runs/x/page.html"))
    assert tracker.close() == []
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert told == [
        {
            "uri": f"sqlite:///{tmp_path}/runs/mlflow.db",
            "experiment": "lab",
            "root": f"{tmp_path}/runs",
        },
        {"sweep": str(tmp_path / "runs" / ".sweeps" / "s-1")},
        {"folder": str(tmp_path / "runs" / "x")},
        {"attach": str(tmp_path / "runs" / "x" / "page.html")},
    ]


def test_an_address_of_ones_own_is_passed_on_by_pipe_only(start, tmp_path):
    uri = "postgresql://me:s3cret@host/db"
    code = "import sys; open('argv', 'w').write(repr(sys.argv))\n" + _LISTEN
    start(code, uri=uri).close()
    assert json.loads((tmp_path / "told").read_text())["uri"] == uri
    assert "s3cret" not in (tmp_path / "argv").read_text()


def test_answers_come_back_with_their_folders(start, tmp_path):
    tracker = start(_ANSWER)
    for name in ("a", "b"):
        tracker.follow(tmp_path / name)
    assert tracker.close() == [
        Shipped(tmp_path / name, RUN_ID, 7) for name in ("a", "b")
    ]


def test_many_answers_do_not_fill_the_pipe(start, tmp_path):
    """More than a pipe holds: neither side may wait for the other."""
    tracker = start(_ANSWER)
    for number in range(3000):
        tracker.follow(tmp_path / f"{'x' * 60}{number}")
    assert len(tracker.close()) == 3000


def test_a_shipper_that_dies_is_reported_for_each_run_it_left(start, tmp_path):
    code = _ANSWER.replace("flush=True)", "flush=True); sys.exit(3)")
    tracker = start(code)
    for name in ("a", "b", "c"):
        tracker.follow(tmp_path / name)
        time.sleep(0.3)  # the third message meets a closed pipe
    done, *lost = tracker.close()
    assert done == Shipped(tmp_path / "a", RUN_ID, 7)
    assert [answer.folder for answer in lost] == [tmp_path / "b", tmp_path / "c"]
    for answer in lost:
        assert (
            answer.problem
            == f"the shipper ended with 3, see {tmp_path}/runs/.shipper.log"
        )


def test_a_line_cut_short_is_no_answer(start, tmp_path):
    code = """
import os, signal, sys
sys.stdin.readline()
sys.stdin.readline()
print('{"folder": "half', end="", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    tracker = start(code)
    tracker.follow(tmp_path / "a")
    (answer,) = tracker.close()
    assert answer.folder == tmp_path / "a"
    assert "the shipper ended with -9" in answer.problem


def test_a_shipper_that_dies_without_runs_is_still_reported(start):
    (answer,) = start("raise SystemExit(1)").close()
    assert answer.folder is None
    assert "the shipper ended with 1" in answer.problem


def test_a_shipper_that_is_never_heard_of_again_is_ended(start, tmp_path, monkeypatch):
    """Its store took the connection and says nothing."""
    monkeypatch.setattr(module, "WORTH_SAYING_SECONDS", 0.1)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.3)
    tracker, told = start("import time; time.sleep(600)"), []
    tracker.follow(tmp_path / "a")
    (answer,) = tracker.close(told.append)
    assert answer.folder == tmp_path / "a"
    assert answer.problem == "MLflow did not answer within 0 seconds"
    assert told == ["waiting for MLflow; what is recorded is safe"]


def test_a_shipper_that_goes_on_is_waited_for(start, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WORTH_SAYING_SECONDS", 0.1)
    monkeypatch.setattr(module, "SILENT_SECONDS", 2.0)
    slow = _ANSWER.replace("flush=True)", "flush=True); time.sleep(0.8)")
    tracker = start("import time\n" + slow)
    for number in range(4):
        tracker.follow(tmp_path / str(number))
    assert [answer.problem for answer in tracker.close()] == [None] * 4


def test_what_the_shipper_complains_of_is_kept(start, tmp_path):
    start("import sys; sys.stderr.write('oh')").close()
    assert (tmp_path / "runs" / ".shipper.log").read_text() == "oh"


def test_a_ctrl_c_for_the_training_does_not_reach_the_shipper(start, tmp_path):
    code = "import os; open('session', 'w').write(str(os.getsid(0)))"
    start(code).close()
    assert int((tmp_path / "session").read_text()) != os.getsid(0)


def test_packages_of_the_working_folder_do_not_stand_in_for_ours(tmp_path):
    """The real command, started where folders of the same names lie."""
    for package in ("runners", "analysis", "json"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit(77)")
    done = subprocess.run(module.COMMAND, cwd=tmp_path, input="{", text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 1
    assert "json.decoder.JSONDecodeError" in done.stderr


@pytest.mark.parametrize("kind", ["none", "offline"])
def test_without_tracking_nothing_is_made(tmp_path, kind):
    tracker = Tracker(TrackingConfig(kind=kind), tmp_path / "runs")
    tracker.follow(tmp_path / "x")
    tracker.begin_sweep(tmp_path / "s")
    assert tracker.close() == []
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_starts_nothing(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError, match="expected a folder, found a file"):
        Tracker(TrackingConfig(), tmp_path / "runs")
