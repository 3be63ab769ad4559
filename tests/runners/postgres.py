"""A PostgreSQL server that is thrown away, and databases in it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psycopg

from tests.runners.commands import wait_for

USER = "tester"
PASSWORD = "pa55/w%rd@s3cret"  # every character that an address must not hold as it is
WRITTEN = quote(PASSWORD, safe="")
MAX_CONNECTIONS = 60


def programs() -> Path | None:
    """The folder of the newest server's programs; None without one."""
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    folders = sorted((path.parent for path in found), key=lambda path: path.parts[-2])
    return folders[-1] if folders else None


class Server:
    """A server on 127.0.0.1, whose data are gone once it is stopped."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="autopsy-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        # the server refuses to run as root
        self._user = {}
        if os.geteuid() == 0:
            shutil.chown(self._home, "postgres", "postgres")
            self._user = {"user": "postgres", "group": "postgres", "extra_groups": ()}
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]

    def start(self) -> None:
        """Make the data folder and wait until the server lets somebody in."""
        folder = programs()
        assert folder
        secret = self._home / "password"
        secret.write_text(PASSWORD)
        if self._user:
            shutil.chown(secret, "postgres", "postgres")
        data = str(self._home / "data")
        make = [folder / "initdb", "-D", data, "-U", USER, "--pwfile", secret]
        make += ["--auth", "scram-sha-256", "--locale", "C", "--encoding", "UTF8"]
        options = {"cwd": self._home, **self._user}
        subprocess.run([*make, "--no-sync"], check=True, capture_output=True, **options)
        serve = [folder / "postgres", "-D", data, "-p", str(self.port)]
        serve += ["-h", "127.0.0.1", "-k", "", "-c", "fsync=off"]
        serve += ["-c", f"max_connections={MAX_CONNECTIONS}"]
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                serve, stdout=log, stderr=subprocess.STDOUT, **options
            )
        wait_for(self._answers)

    def stop(self) -> None:
        """End the server, whoever is still connected."""
        if self._process:
            self._process.send_signal(2)  # SIGINT: it throws everybody out
            self._process.wait(30)
        shutil.rmtree(self._home)

    def database(self) -> str:
        """The address of a new, empty database."""
        name = f"store_{uuid4().hex[:8]}"
        self.ask(f"CREATE DATABASE {name}")
        return f"postgresql://{USER}:{WRITTEN}@127.0.0.1:{self.port}/{name}"

    def ask(self, query: str, address: str | None = None) -> list[tuple]:
        """The rows that a query gives in a database, by default the server's own."""
        name = address.rpartition("/")[2] if address else "postgres"
        with closing(self._connect(name)) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def visitors(self, count: int) -> Iterator[None]:
        """So many connections that do nothing."""
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(self._connect("postgres"))
            yield

    def _connect(self, database: str):
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            dbname=database,
            application_name="observer",
            autocommit=True,
        )

    def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, (self._home / "log").read_text()
        try:
            self._connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True
