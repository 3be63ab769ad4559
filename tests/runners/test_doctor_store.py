"""The doctor on a SQLite store: whole, free, and of the right version."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from alembic.script import ScriptDirectory

from runners.doctor import schema as doctor_schema
from runners.doctor import sqlite as doctor_sqlite
from runners.doctor.check import NOT_APPLICABLE, OK, PROBLEM, WARNING
from runners.doctor.schema import check_schema, head, installed_revisions
from runners.doctor.store import check_store, without_secrets

OLD = "451aebb31d03"  # of MLflow 1


@pytest.fixture
def store(empty_store, tmp_path):
    return shutil.copy(empty_store, tmp_path / "mlflow.db")


def rows(path) -> dict:
    return {row.name: row for row in check_store(f"sqlite:///{path}")}


def change(path, *statements):
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def test_a_sound_store(store):
    found = rows(store)
    assert {name: row.answer for name, row in found.items()} == dict.fromkeys(
        ["store", "file of the store", "lock of the store", "schema of the store",
         "file system of the store"],
        OK,
    )  # fmt: skip
    assert found["store"].found == f"sqlite:///{store} (a SQLite file)"


# -- the version of the tables ---------------------------------------------------------


def test_the_expected_version_is_the_one_that_mlflow_migrates_to():
    import mlflow

    folder = os.path.join(mlflow.__path__[0], "store", "db_migrations")
    script = ScriptDirectory(folder)
    assert [head(installed_revisions())] == script.get_heads()
    known = {one.revision for one in script.walk_revisions()}
    assert set(installed_revisions()) == known
    assert OLD in known


def test_an_older_store_is_named_with_both_versions_and_the_way_out(store):
    expected = head(installed_revisions())
    change(store, f"UPDATE alembic_version SET version_num = '{OLD}'")
    row = rows(store)["schema of the store"]
    assert row.answer == PROBLEM
    assert row.found == f"older: {OLD}; MLflow 3.17.2 expects {expected}"
    assert row.advice.endswith(f"mlflow db upgrade 'sqlite:///{store}'")


def test_a_newer_store_wants_a_newer_mlflow(store):
    change(store, "UPDATE alembic_version SET version_num = 'ffff00000000'")
    row = rows(store)["schema of the store"]
    assert row.answer == PROBLEM
    assert row.found.startswith("newer: ffff00000000; MLflow 3.17.2 expects ")
    assert row.advice.startswith("upgrade MLflow")
    assert "db upgrade" not in row.advice


def test_tables_without_a_version_are_older(store):
    change(store, "DELETE FROM alembic_version")
    assert rows(store)["schema of the store"].found.startswith("older: none; ")


def test_without_mlflow_nothing_is_expected(monkeypatch):
    monkeypatch.setattr(doctor_schema, "find_spec", lambda _: None)
    assert check_schema([OLD], "sqlite:///x").answer == NOT_APPLICABLE


# -- the file --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda _: None, lambda path: path.touch()])
def test_a_file_that_is_still_to_be_made(tmp_path, make):
    path = tmp_path / "new.db"
    make(path)
    row = rows(path)["file of the store"]
    assert row.answer == OK
    assert "the first run makes" in row.found


def test_a_database_without_tables_is_still_to_be_made(tmp_path):
    change(tmp_path / "x.db", "CREATE TABLE t (x)", "DROP TABLE t")
    row = rows(tmp_path / "x.db")["file of the store"]
    assert (row.answer, "no tables yet" in row.found) == (OK, True)


def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"garbage" * 1000)
    row = rows(path)["file of the store"]
    assert (row.answer, row.found) == (
        PROBLEM,
        "mlflow.db: file is not a database",
    )


def test_a_damaged_page_is_found(store):
    size = store.stat().st_size
    with store.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xff" * 8192)
    row = rows(store)["file of the store"]
    assert row.answer == PROBLEM
    assert row.found.startswith("damaged: ")
    assert "autopsy sync" in row.advice


def test_a_store_that_lost_its_end_is_found(store):
    os.truncate(store, store.stat().st_size // 2)
    row = rows(store)["file of the store"]
    assert (row.answer, row.found.split(":")[0]) == (PROBLEM, "damaged")


@pytest.mark.parametrize("make", [os.mkdir, lambda path: os.symlink("gone", path)])
def test_what_is_no_file_at_all(tmp_path, make):
    make(tmp_path / "mlflow.db")
    assert rows(tmp_path / "mlflow.db")["file of the store"].answer == PROBLEM


HALF = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("PRAGMA cache_size = 1")
database.execute("BEGIN")
database.execute("CREATE TABLE big (x)")
for _ in range(500):
    database.execute("INSERT INTO big VALUES (randomblob(3000))")
os._exit(1)
"""


def test_half_a_write_of_a_killed_process_is_left_to_the_next_one(store):
    subprocess.run([sys.executable, "-c", HALF, store])
    journal = store.with_name("mlflow.db-journal")
    before = store.read_bytes(), journal.read_bytes()
    row = rows(store)["file of the store"]
    assert (row.answer, "half a write" in row.found) == (WARNING, True)
    assert (store.read_bytes(), journal.read_bytes()) == before


@pytest.mark.parametrize("how", ["IMMEDIATE", "EXCLUSIVE"])
def test_who_holds_the_store_is_named(store, monkeypatch, how):
    monkeypatch.setattr(doctor_sqlite, "LOCK_SECONDS", 0.2)
    with closing(sqlite3.connect(store, isolation_level=None)) as holder:
        holder.execute(f"BEGIN {how}")
        row = rows(store)["lock of the store"]
    assert row.answer == WARNING
    assert f"process {os.getpid()}" in row.found
    assert rows(store)["lock of the store"].answer == OK


# -- addresses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:s3cret@host/db",
        "postgresql://host/db?user=me&password=s3cret",
        "postgresql://me:s3%63ret@host/db",
        "https://me:s3cret@host:8080/x",
        "mysql+pymysql://s3cret:s3cret@host/db",
    ],
)
def test_no_password_is_shown(address):
    for text in (address, f"cannot open {address}", "no s3cret, no s3%63ret"):
        shown = without_secrets(text, address)
        assert "s3cret" not in shown
        assert "s3%63ret" not in shown or "%" not in address


def test_an_address_without_a_secret_stays_as_it_is():
    for address in ("sqlite:////a:b@c/x.db", "http://host:5000", "postgresql://h/db"):
        assert without_secrets(f"{address}!", address) == f"{address}!"


@pytest.mark.parametrize("address", ["http://[bad", "postgresql://h:port/db"])
def test_what_is_no_host_or_port_is_said(address):
    assert check_store(address)[-1].answer == PROBLEM
