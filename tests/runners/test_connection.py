"""A store that is away is asked again, less and less often."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from runners import connection as module
from runners import store as store_module
from runners.connection import FIRST_WAIT, LONGEST_WAIT, Connection
from runners.store import ensure_experiment, give_up_early


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def opened(store, monkeypatch):
    """How often the store was opened; it fails while it is broken."""
    calls = []

    def open_store(uri):
        calls.append(uri)
        store.search_experiments()
        return store

    monkeypatch.setattr(module, "open_store", open_store)
    return calls


def test_a_store_is_opened_once(store, opened, clock):
    connection = Connection("sqlite:///x", "lab", Path("runs"))
    assert opened == []
    for _ in range(3):
        assert connection.ready()
    assert opened == ["sqlite:///x"]
    assert connection.client is store


def test_the_waiting_doubles_and_ends(store, opened, clock):
    connection = Connection("sqlite:///x", "lab", Path("runs"))
    store.broken = True
    asked = []
    for second in range(200):
        clock[0] = 1000.0 + second
        before = len(opened)
        assert not connection.ready()
        if len(opened) > before:
            asked.append(second)
    assert asked == [0, 1, 3, 7, 15, 31, 61, 91, 121, 151, 181]
    assert (FIRST_WAIT, LONGEST_WAIT) == (1.0, 30.0)
    assert connection.problem == "database is locked"
    store.broken = False
    clock[0] += LONGEST_WAIT
    assert connection.ready()
    assert connection.problem == ""


def test_a_store_that_went_away_is_known_once_it_is_asked(store, opened, clock):
    connection = Connection("sqlite:///x", "lab", Path("runs"))
    assert connection.ready()
    store.broken = True
    assert connection.ready()  # nobody has noticed
    assert not connection.ready(at_once=True)
    assert not connection.ready()  # and nobody asks for a second
    store.broken = False
    assert not connection.ready()
    clock[0] += FIRST_WAIT
    assert connection.ready()
    assert len(opened) == 1


def test_at_once_does_not_wait(store, opened, clock):
    connection = Connection("sqlite:///x", "lab", Path("runs"))
    store.broken = True
    assert not connection.ready()
    store.broken = False
    assert not connection.ready()
    assert connection.ready(at_once=True)


def test_a_password_is_not_kept_where_it_may_be_written_down():
    connection = Connection("postgresql://me:s3cret@host/db", "lab", Path("runs"))
    assert connection.uri == "postgresql://***@host/db"


def test_a_shipper_gives_up_early_unless_its_user_chose(monkeypatch):
    names = list(store_module._PATIENCE)
    for name in names:
        monkeypatch.setenv(name, store_module._PATIENCE[name][0])
    give_up_early()
    assert [os.environ[name] for name in names] == ["0", "10"]
    monkeypatch.setenv(names[0], "5")
    give_up_early()
    assert os.environ[names[0]] == "5"


def test_artifacts_of_a_database_on_a_server_lie_in_the_root(store, tmp_path):
    made = {}
    client = SimpleNamespace(
        get_experiment_by_name=lambda name: None,
        create_experiment=lambda name, artifact_location: made.setdefault(
            name, artifact_location
        ),
    )
    ensure_experiment(client, "postgresql://host/db", "p", tmp_path)
    ensure_experiment(client, "http://host", "h", tmp_path)
    ensure_experiment(client, f"sqlite:///{tmp_path}/x/mlflow.db", "s", tmp_path)
    assert made == {
        "p": (tmp_path / "mlartifacts").as_uri(),
        "h": None,  # the server knows
        "s": (tmp_path / "x" / "mlartifacts").as_uri(),
    }
