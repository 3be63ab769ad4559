"""The doctor on a real PostgreSQL server."""

from __future__ import annotations

import pytest

from runners.doctor.check import OK, PROBLEM, WARNING
from runners.doctor.schema import head, installed_revisions
from runners.doctor.store import check_store
from tests.runners.commands import wait_for
from tests.runners.postgres import MAX_CONNECTIONS, PASSWORD, WRITTEN

pytestmark = pytest.mark.slow

TABLE = "CREATE TABLE alembic_version (version_num text)"


def rows(address) -> dict:
    found = {row.name: row for row in check_store(address)}
    assert WRITTEN not in repr(found)
    assert PASSWORD not in repr(found)
    return found


def versioned(postgres, version) -> str:
    address = postgres.database()
    postgres.ask(TABLE, address)
    postgres.ask(f"INSERT INTO alembic_version VALUES ('{version}')", address)
    return address


def test_an_empty_database_is_still_to_be_filled_and_stays_empty(postgres):
    address = postgres.database()
    found = rows(address)
    assert {row.answer for row in found.values()} == {OK}
    assert found["store answers"].found.startswith("postgresql 1")
    assert f"of {MAX_CONNECTIONS} in use" in found["connections"].found
    tables = "SELECT * FROM pg_tables WHERE schemaname = 'public'"
    assert postgres.ask(tables, address) == []


def test_the_version_of_the_tables(postgres):
    expected = head(installed_revisions())
    assert rows(versioned(postgres, expected))["schema of the store"].answer == OK
    row = rows(versioned(postgres, "451aebb31d03"))["schema of the store"]
    assert row.answer == PROBLEM
    assert row.found == f"older: 451aebb31d03; MLflow 3.17.2 expects {expected}"
    assert "mlflow db upgrade 'postgresql://***@127.0.0.1" in row.advice


def test_a_wrong_password_and_a_missing_database_are_said(postgres):
    address = postgres.database()
    row = rows(address.replace(WRITTEN, "wrong"))["store answers"]
    assert (row.answer, "password authentication failed" in row.found) == (
        PROBLEM,
        True,
    )
    row = rows(address + "x")["store answers"]
    assert (row.answer, "does not exist" in row.found) == (PROBLEM, True)


def test_a_server_that_is_nearly_full_is_a_warning(postgres):
    address = postgres.database()
    with postgres.visitors(50):
        assert rows(address)["connections"].answer == WARNING
    wait_for(lambda: rows(address)["connections"].answer == OK)
