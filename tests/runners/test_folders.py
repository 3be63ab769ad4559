"""Run folders: one name, one folder; where they are in MLflow."""

from __future__ import annotations

import json

import pytest

from minigpt.records import InputError
from runners.folders import (
    create_run_folder,
    make_root,
    read_link,
    run_folders,
    write_manifest,
)

RUN_ID = "0123456789abcdef" * 2


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    names = [create_run_folder(tmp_path / "runs", "x").name for _ in range(3)]
    assert names == ["x", "x-2", "x-3"]


def test_a_file_of_that_name_takes_it_too(tmp_path):
    (tmp_path / "x").write_text("mine")
    assert create_run_folder(tmp_path, "x").name == "x-2"
    assert (tmp_path / "x").read_text() == "mine"


def test_a_gap_in_the_numbers_is_used_and_nothing_is_overwritten(tmp_path):
    for name in ("x", "x-3"):
        (tmp_path / name).mkdir()
    assert create_run_folder(tmp_path, "x").name == "x-2"
    assert create_run_folder(tmp_path, "x").name == "x-4"


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_root_that_is_a_file_is_the_users_mistake(tmp_path, below):
    (tmp_path / "root").write_text("")
    with pytest.raises(InputError, match=r"expected a folder, found a file"):
        make_root(tmp_path / "root" / below)


def test_only_folders_with_a_manifest_are_runs(tmp_path):
    for name in ("b", "a", ".pulled"):
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name, {})
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert [folder.name for folder in run_folders(tmp_path)] == ["a", "b"]
    assert run_folders(tmp_path / "missing") == run_folders(tmp_path / "file") == []


# -- the place in MLflow ---------------------------------------------------------------


def test_a_folder_without_a_link_is_not_tracked(tmp_path):
    assert read_link(tmp_path) is None


def test_a_link_is_read_as_it_was_written(tmp_path):
    link = {"run_id": RUN_ID, "complete": True}
    (tmp_path / "mlflow.json").write_text(json.dumps(link))
    assert read_link(tmp_path) == link


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"run_id": 5}', '{"run_id": "../x"}', "[" * 100_000, "\xff"],
)
def test_a_damaged_link_is_named(tmp_path, text):
    (tmp_path / "mlflow.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"mlflow\.json: expected a JSON object") as e:
        read_link(tmp_path)
    assert "\n" not in str(e.value)
