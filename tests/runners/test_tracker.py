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
    tracker.begin_sweep("s-1", "title")
    tracker.follow(Path("runs/x"))
    tracker.attach(Path("runs/x/page.html"))
    tracker.end_sweep("s-1", "FAILED")
    assert tracker.close() == []
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert told == [
        {"uri": f"sqlite:///{tmp_path}/runs/mlflow.db", "experiment": "lab"},
        {"sweep": "s-1", "name": "title"},
        {"folder": str(tmp_path / "runs" / "x")},
        {"attach": str(tmp_path / "runs" / "x" / "page.html")},
        {"sweep": "s-1", "status": "FAILED"},
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


def test_a_store_that_cannot_be_used_is_one_answer(start, tmp_path):
    line = json.dumps({"folder": None, "problem": "no store"})
    tracker = start(f"import sys; sys.stdin.readline(); print('{line}'); sys.exit(1)")
    tracker.follow(tmp_path / "a")
    assert tracker.close() == [Shipped(None, problem="no store")]


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


def test_without_tracking_nothing_is_made(tmp_path):
    tracker = Tracker(TrackingConfig(kind="none"), tmp_path / "runs")
    tracker.follow(tmp_path / "x")
    tracker.begin_sweep("s", "t")
    tracker.end_sweep("s", "FINISHED")
    assert tracker.close() == []
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_starts_nothing(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError, match="expected a folder, found a file"):
        Tracker(TrackingConfig(), tmp_path / "runs")
