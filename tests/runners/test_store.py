"""The MLflow store: one line where it does not open, one maker where it is missing."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from runners.settings import StoreError
from runners.store import first_line, open_store


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"garbage" * 100, "file is not a database"),
        (b"SQLite format 3\0" + b"\xff" * 4000, "database"),
    ],
)
def test_a_damaged_file_is_said_at_once(tmp_path, content, part):
    (tmp_path / "mlflow.db").write_bytes(content)
    with pytest.raises(StoreError, match=f"expected one that opens, found: .*{part}"):
        open_store(f"sqlite:///{tmp_path}/mlflow.db")
    assert (tmp_path / "mlflow.db").read_bytes() == content


def test_a_store_below_a_file_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="expected one that opens, found:"):
        open_store(f"sqlite:///{tmp_path}/file/mlflow.db")


def test_a_store_that_is_a_folder_is_said(tmp_path):
    (tmp_path / "mlflow.db").mkdir()
    with pytest.raises(StoreError, match="unable to open database file"):
        open_store(f"sqlite:///{tmp_path}/mlflow.db")


def test_a_password_is_in_no_message():
    with pytest.raises(StoreError) as caught:
        open_store("postgresql+none://me:s3cret@127.0.0.1:9/db")
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).startswith("MLflow store postgresql+none://***@127.0.0.1")


def test_a_server_that_is_away_is_said_soon(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(StoreError, match=r"expected one that opens, found: .*refused"):
        open_store("http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb", "a"),
        ("  \n a\n", "a"),
        ("", "ValueError"),
        (
            "API failed: HTTPConnectionPool(host='127.0.0.1', port=5077): Max retries "
            "exceeded with url: /api (Caused by ... [Errno 111] Connection refused)",
            "127.0.0.1:5077: connection refused",
        ),
        (
            "HTTPSConnectionPool(host='h', port=443): Read timed out. (read=10)",
            "h:443: timed out",
        ),
        ("HTTPConnectionPool(host='h', port=1): odd", "h:1: no connection"),
    ],
)
def test_the_first_line_of_an_error(text, line):
    assert first_line(ValueError(text)) == line


_OPEN = """
import sys
from pathlib import Path
from runners.store import ensure_experiment, open_store
client = open_store(sys.argv[1])
print(ensure_experiment(client, sys.argv[1], "lab", Path(".")))
"""


@pytest.mark.slow
def test_four_processes_that_meet_on_a_missing_file_make_it_once(tmp_path):
    uri = f"sqlite:///{tmp_path}/deep/mlflow.db"
    command = [sys.executable, "-c", _OPEN, uri]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(4)]
    answers = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, answers
    assert len({out for out, _ in answers}) == 1
    rows = sqlite3.connect(tmp_path / "deep" / "mlflow.db").execute(
        "SELECT artifact_location FROM experiments WHERE name = 'lab'"
    )
    ((location,),) = rows.fetchall()
    assert location == (tmp_path / "deep" / "mlartifacts").as_uri()
