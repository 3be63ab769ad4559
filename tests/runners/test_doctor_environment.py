"""The doctor on packages and variables."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from runners.doctor import environment as module
from runners.doctor.check import NOT_APPLICABLE, OK, PROBLEM, WARNING
from runners.doctor.environment import check_environment

LOCAL, POSTGRES = "sqlite:///x.db", "postgresql://h/db"
VARIABLES = (
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"),
    *("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"),
    *("AUTOPSY_ROOT", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def rows(address=LOCAL) -> dict:
    return {row.name: row for row in check_environment(address)}


@pytest.fixture
def versions(monkeypatch):
    """Package -> its version, or None where it is not installed."""
    changed, real = {}, module.version

    def version(name):
        found = changed.get(name, "as it is")
        if found is None:
            raise PackageNotFoundError(name)
        return real(name) if found == "as it is" else found

    monkeypatch.setattr(module, "version", version)
    return changed


def test_what_the_tests_run_in_is_sound():
    answers = {name: row.answer for name, row in rows(POSTGRES).items()}
    assert answers == {
        "Python": OK,
        "packages": OK,
        "packages for training": OK,
        "driver of PostgreSQL": OK,
        "environment variables": OK,
    }
    assert "mlflow 3." in rows()["packages for training"].found
    assert "pyarrow " in rows()["packages"].found
    assert "torch" not in rows()["packages"].found


def test_an_old_python_is_a_problem(monkeypatch):
    monkeypatch.setattr(module.platform, "python_version", lambda: "3.10.2")
    row = rows()["Python"]
    assert (row.answer, row.found) == (PROBLEM, "3.10.2, expected >=3.11")


def test_a_version_that_the_pins_refuse_is_named(versions):
    versions["mlflow"] = "3.18.0"
    row = rows()["packages for training"]
    assert row.answer == PROBLEM
    assert row.found == "mlflow: expected ==3.17.2, found 3.18.0"
    assert row.advice == "pip install -e '.[train]'"


def test_a_local_version_meets_its_pin(versions):
    versions["torch"] = "2.13.0+cpu"
    assert rows()["packages for training"].answer == OK


def test_a_missing_package_is_named(versions):
    versions["pyarrow"] = None
    row = rows()["packages"]
    assert (row.answer, row.found) == (
        PROBLEM,
        "pyarrow: expected <26,>=22, found none",
    )


def test_a_package_whose_files_are_gone_is_named(monkeypatch):
    real = module.find_spec
    monkeypatch.setattr(
        module, "find_spec", lambda name: None if name == "hydra" else real(name)
    )
    row = rows()["packages for training"]
    assert row.answer == PROBLEM
    assert row.found.startswith("hydra-core 1.3")
    assert row.found.endswith("expected its module hydra, found none")


def test_without_the_training_packages_records_are_read_only(versions):
    for one in module._requirements("train"):
        versions[one.name] = None
    assert rows()["packages for training"].answer == NOT_APPLICABLE


def test_the_driver_matters_only_for_postgresql(versions):
    versions["psycopg"] = None
    assert rows(LOCAL)["driver of PostgreSQL"].answer == NOT_APPLICABLE
    row = rows(POSTGRES)["driver of PostgreSQL"]
    assert row.answer == PROBLEM
    assert "psycopg: expected >=3.2, found none" in row.found


@pytest.mark.parametrize(
    ("name", "value", "answer"),
    [
        ("MLFLOW_TRACKING_URI", "http://me:s3cret@h", WARNING),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "7", WARNING),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1", OK),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", "120", WARNING),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", "soon", PROBLEM),
        ("AUTOPSY_ROOT", "elsewhere", OK),
        ("OMP_NUM_THREADS", "8", OK),
        ("OPENBLAS_NUM_THREADS", "4", WARNING),
    ],
)
def test_a_variable_has_a_row_if_it_is_set(monkeypatch, name, value, answer):
    assert name not in rows()
    monkeypatch.setenv(name, value)
    row = rows()[name]
    assert row.answer == answer
    assert "s3cret" not in row.found + row.advice
    assert "environment variables" not in rows()
