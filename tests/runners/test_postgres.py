"""PostgreSQL as the store: the rule's points, one maker, few connections, no secret."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from runners.curves import CURVES
from runners.settings import StoreError
from tests.runners.commands import AUTOPSY
from tests.runners.postgres import PASSWORD, WRITTEN
from tests.runners.stored import expected_steps
from tests.runners.together import experiments_made_at_once, train_at_once

pytestmark = pytest.mark.slow

MANY = 8
SECRETS = (PASSWORD.encode(), WRITTEN.encode())
STEPS = "SELECT step FROM metrics JOIN runs USING (run_uuid) WHERE name = '{}' AND "
STEPS += "key = '{}' ORDER BY step"
OPEN = "SELECT count(*) FROM pg_stat_activity WHERE application_name <> 'observer' AND "
OPEN += "datname = '{}'"


@dataclass(frozen=True)
class Tracked:
    """A run that the command trained, what it said, and the database it is in."""

    folder: Path
    address: str
    done: subprocess.CompletedProcess[str]


def train(working: Path, uri: str) -> subprocess.CompletedProcess[str]:
    command = [AUTOPSY, "train", "name=x", "steps=200", "injection=scale"]
    command += ["injection_step=150", f"tracking.uri='{uri}'"]
    return subprocess.run(
        command, cwd=working, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def tracked(postgres, tmp_path_factory) -> Tracked:
    working, address = tmp_path_factory.mktemp("tracked"), postgres.database()
    return Tracked(working / "experiments" / "x", address, train(working, address))


def assert_complete(postgres, address, folder) -> None:
    assert json.loads((folder / "mlflow.json").read_text())["complete"]
    runs = postgres.ask("SELECT name, status FROM runs", address)
    assert runs == [("x", "FINISHED")]
    steps = expected_steps(folder)
    assert len(steps) > 20  # around the injection, all of them
    for key in CURVES:
        found = [step for (step,) in postgres.ask(STEPS.format("x", key), address)]
        assert found == steps, key


def test_a_run_is_complete_there(postgres, tracked):
    assert (tracked.done.returncode, tracked.done.stderr) == (0, "")
    assert_complete(postgres, tracked.address, tracked.folder)


def test_the_password_is_nowhere(postgres, tracked):
    said = (tracked.done.stdout + tracked.done.stderr).encode()
    texts = {"output": said}
    files = [path for path in tracked.folder.parents[1].rglob("*") if path.is_file()]
    texts |= {str(path): path.read_bytes() for path in files}
    assert tracked.folder / "manifest.json" in files
    for table in ("params", "tags", "experiment_tags"):
        rows = postgres.ask(f"SELECT * FROM {table}", tracked.address)
        texts[table] = repr(rows).encode()
    assert b"postgresql://***@127.0.0.1" in texts[str(tracked.folder / "mlflow.json")]
    found = [name for name, text in texts.items() for one in SECRETS if one in text]
    assert found == []


def test_eight_runs_make_the_tables_once_and_hold_few_connections(postgres, tmp_path):
    address, counts = postgres.database(), []
    query = OPEN.format(address.rpartition("/")[2])

    def sample() -> None:
        counts.append(postgres.ask(query)[0][0])

    answers = train_at_once(MANY, tmp_path, address, meanwhile=sample)
    assert not any(PASSWORD in answer.out + answer.err for answer in answers)
    assert 1 <= max(counts) <= 2 * MANY
    sample()
    assert counts[-1] == 0
    runs = postgres.ask("SELECT name, status FROM runs ORDER BY name", address)
    assert runs == [(f"r{number}", "FINISHED") for number in range(MANY)]
    for number in range(MANY):
        steps = expected_steps(tmp_path / "experiments" / f"r{number}")
        rows = postgres.ask(STEPS.format(f"r{number}", CURVES[0]), address)
        assert [step for (step,) in rows] == steps


def test_eight_that_open_an_empty_database_make_one_experiment(postgres):
    address = postgres.database()
    query = OPEN.format(address.rpartition("/")[2])
    ids, held = experiments_made_at_once(
        address, MANY, meanwhile=lambda: postgres.ask(query)[0][0]
    )
    assert ids[0].isdigit()
    assert ids == ids[:1] * MANY
    assert held == 0  # who has nothing to say holds no connection


def test_a_run_reaches_it_through_a_server(postgres, serve, port, tmp_path):
    address = postgres.database()
    serve("--uri", address)
    done = train(tmp_path, f"http://127.0.0.1:{port}")
    assert (done.returncode, done.stderr) == (0, "")
    assert_complete(postgres, address, tmp_path / "experiments" / "x")


def test_a_server_that_is_away_is_said_soon(port):
    from runners.store import open_store

    begin = time.monotonic()
    with pytest.raises(StoreError, match=r"expected one that opens, found: .*refused"):
        open_store(f"postgresql://me:s3cret@127.0.0.1:{port}/db")
    assert time.monotonic() - begin < 5


def test_a_server_that_never_answers_is_given_up(monkeypatch):
    from runners.store import open_store

    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begin = time.monotonic()
        with pytest.raises(StoreError, match="timeout"):
            open_store(f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db")
    assert time.monotonic() - begin < 15
