"""Who writes a run, and whether that process is alive, dead or cannot be seen."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from runners import owner as module
from runners.folders import HEARTBEAT, current_status, last_sign, write_manifest
from runners.owner import ALIVE, DEAD, UNKNOWN, liveness, owner, process_start


def test_the_run_of_a_live_process_is_running():
    assert liveness(owner()) == ALIVE


def test_the_run_of_a_process_that_ended_is_dead():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    who = owner() | {"pid": process.pid, "started": process_start(process.pid)}
    assert liveness(who) == ALIVE
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, not yet reaped
    assert liveness(who) == DEAD
    process.communicate()
    assert liveness(who) == DEAD


def test_a_process_id_that_is_used_again_does_not_revive_a_run():
    assert liveness(owner() | {"started": "1"}) == DEAD


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"host": "elsewhere"},
        {"namespace": "pid:[1]"},  # a container of this machine
        {"boot": "other"},  # a machine of the same name, or this one before a restart
    ],
)
def test_what_cannot_be_seen_from_here_is_unknown(elsewhere):
    who = owner() | {"pid": 1, "started": "1"} | elsewhere
    assert liveness(who, time.time()) == UNKNOWN
    assert liveness(who) == UNKNOWN


def test_a_restart_of_the_machine_ended_its_runs(monkeypatch):
    monkeypatch.setattr(module, "_text", lambda path: path)
    who = owner() | {"boot": "before"}
    assert liveness(who, time.time() - 3600) == DEAD
    assert liveness(who, time.time() - 10) == UNKNOWN
    assert liveness(who | {"machine": "a copy"}, time.time() - 3600) == UNKNOWN


@pytest.mark.parametrize("who", [None, 5, {}, {"host": owner()["host"], "pid": "x"}])
def test_a_run_of_nobody_known_is_unknown(who):
    assert liveness(who) == UNKNOWN


@pytest.mark.parametrize("status", ["finished", "failed", "killed"])
def test_a_status_that_is_final_stays(tmp_path, status):
    manifest = {"status": status, "owner": owner() | {"started": "1"}}
    assert current_status(tmp_path, manifest) == status


def test_a_run_whose_process_died_is_killed(tmp_path):
    manifest = {"status": "running", "owner": owner() | {"started": "1"}}
    assert current_status(tmp_path, manifest) == "killed"
    assert current_status(tmp_path, manifest | {"owner": owner()}) == "running"
    assert current_status(tmp_path, manifest | {"owner": None}) == "running"


def test_the_last_sign_of_life_is_the_newest_file(tmp_path):
    assert last_sign(tmp_path) is None
    write_manifest(tmp_path, {})
    os.utime(tmp_path / "manifest.json", (100, 100))
    assert last_sign(tmp_path) == 100
    (tmp_path / HEARTBEAT).touch()
    os.utime(tmp_path / HEARTBEAT, (200, 200))
    assert last_sign(tmp_path) == 200
