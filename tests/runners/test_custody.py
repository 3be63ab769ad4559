"""One process at a time has a run folder, and a sign of life while it trains."""

from __future__ import annotations

import os
import threading
import time

import pytest

from minigpt.records import InputError
from runners import custody as module
from runners import heartbeat
from runners.custody import Custody, held
from runners.folders import HEARTBEAT
from runners.heartbeat import Heartbeat
from tests.runners.commands import wait_for


def test_a_folder_is_one_owners(tmp_path):
    first, second = Custody(tmp_path), Custody(tmp_path)
    assert first.take()
    assert not second.take(0.1)
    first.give_up()
    assert second.take()
    second.give_up()
    second.give_up()  # harmless


def test_a_folder_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(OSError, match="gone"):
        Custody(tmp_path / "gone").take()


def test_who_holds_it_is_waited_for_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_WORTH_SAYING_SECONDS", 0.1)
    told, taken = [], threading.Event()

    def ship():
        custody = Custody(tmp_path)
        assert custody.take()
        taken.set()
        time.sleep(0.5)
        custody.give_up()

    thread = threading.Thread(target=ship)
    thread.start()
    taken.wait()
    with held(tmp_path, told.append):
        assert not Custody(tmp_path).take()
    thread.join()
    assert told == [f"{tmp_path.name}: waiting for the process that ships it to MLflow"]
    assert Custody(tmp_path).take()


def test_who_never_lets_go_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_WORTH_SAYING_SECONDS", 0.1)
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.1)
    first = Custody(tmp_path)
    assert first.take()
    with (
        pytest.raises(InputError, match="no other process works on"),
        held(tmp_path, lambda line: None),
    ):
        pass


# -- signs of life ---------------------------------------------------------------------


def test_a_heart_beats_while_a_run_trains_and_then_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    path = tmp_path / HEARTBEAT
    with Heartbeat(tmp_path):
        wait_for(path.is_file)
        os.utime(path, (100, 100))
        wait_for(lambda: path.stat().st_mtime > time.time() - 60)
    assert not path.exists()


def test_a_folder_that_vanished_stops_no_heart(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)
    with Heartbeat(tmp_path / "gone"):
        time.sleep(0.05)
    assert not (tmp_path / "gone").exists()
