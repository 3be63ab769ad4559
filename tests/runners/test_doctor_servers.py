"""The doctor on an MLflow server, and on servers that are none or say nothing."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import pytest

from runners.doctor import store as doctor_store
from runners.doctor.check import NOT_APPLICABLE, OK, PROBLEM, WARNING
from runners.doctor.store import check_store

SOUND = {
    "/health": (200, "OK"),
    "/version": (200, version("mlflow")),
    "/api/2.0/mlflow/experiments/search": (200, "{}"),
}


@contextmanager
def served(pages, seen=None):
    """The address of a server with these pages: path -> status and text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if seen is not None:
                seen.append((self.path, self.headers.get("Authorization")))
            status, text = pages.get(self.path.partition("?")[0], (404, "none"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def rows(address) -> dict:
    return {row.name: row for row in check_store(address)}


def test_a_sound_server():
    with served(SOUND) as host:
        answers = {name: row.answer for name, row in rows(f"http://{host}").items()}
    assert answers == {
        "store": OK,
        "store answers": OK,
        "version of the server": OK,
        "access to runs": OK,
        "schema of the store": NOT_APPLICABLE,
    }


@pytest.mark.parametrize(
    ("page", "answer", "row", "wanted"),
    [
        ("/health", (200, "<html>"), "store answers", PROBLEM),
        ("/health", (500, "OK"), "store answers", PROBLEM),
        ("/version", (200, "2.9.1"), "version of the server", WARNING),
        ("/version", (404, ""), "version of the server", WARNING),
        ("/api/2.0/mlflow/experiments/search", (401, ""), "access to runs", PROBLEM),
        ("/api/2.0/mlflow/experiments/search", (500, "x"), "access to runs", PROBLEM),
    ],
)
def test_what_is_wrong_with_a_server(page, answer, row, wanted):
    with served(SOUND | {page: answer}) as host:
        found = rows(f"http://{host}")
    assert found[row].answer == wanted


def test_both_versions_are_named():
    with served(SOUND | {"/version": (200, "2.9.1")}) as host:
        row = rows(f"http://{host}")["version of the server"]
    assert row.found == f"2.9.1, here {version('mlflow')}"


def test_the_path_and_the_password_of_the_address_are_used_and_not_shown(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN", raising=False)
    seen = []
    pages = {f"/sub{path}": page for path, page in SOUND.items()}
    with served(pages, seen) as host:
        found = rows(f"http://me:s3cr%65t@{host}/sub/")
    assert found["access to runs"].answer == OK
    assert {authorization for _, authorization in seen} == {"Basic bWU6czNjcmV0"}
    assert "s3cr" not in repr(found)


def test_a_token_is_what_the_client_would_use(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc")
    seen = []
    with served(SOUND, seen) as host:
        rows(f"http://{host}")
    assert seen[0] == ("/health", "Bearer abc")


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
def test_nobody_listens(port, scheme):
    begin = time.monotonic()
    row = rows(f"{scheme}://me:s3cret@127.0.0.1:{port}/db")["store answers"]
    assert (row.answer, "refused" in row.found) == (PROBLEM, True)
    assert "s3cret" not in row.found
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
def test_a_server_that_accepts_and_never_answers_is_left_in_time(scheme):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begin = time.monotonic()
        address = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/db"
        assert rows(address)["store answers"].answer == PROBLEM
        assert time.monotonic() - begin < 10


def test_a_server_that_answers_a_byte_at_a_time_is_left_in_time(monkeypatch):
    """No wait on its socket is long; all of them are."""
    monkeypatch.setattr(doctor_store, "SECONDS", 1.0)
    ended = threading.Event()

    def drip(server):
        client, _ = server.accept()
        with client:
            while not ended.wait(0.1):
                client.sendall(b"H")

    with socket.create_server(("127.0.0.1", 0)) as server:
        dripping = threading.Thread(target=drip, args=(server,))
        dripping.start()
        begin = time.monotonic()
        try:
            row = rows(f"http://127.0.0.1:{server.getsockname()[1]}")["store answers"]
            seconds = time.monotonic() - begin
        finally:
            ended.set()
            dripping.join()
    assert (row.answer, row.found) == (PROBLEM, "no answer within 1 s")
    assert seconds < 3


def test_a_missing_driver_is_named():
    row = rows("mysql://me:s3cret@127.0.0.1/db")["store answers"]
    assert (row.answer, "MySQLdb" in row.found) == (PROBLEM, True)
