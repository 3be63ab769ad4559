"""The command itself: help by users, version, unknown verbs."""

from __future__ import annotations

import re
import socket
from importlib.metadata import version

import pytest

GROUPS = {
    "A learner": {"lab", "dashboard"},
    "A researcher": {"train", "sync", "compare", "doctor", "ui"},
    "A training engineer": {"show"},
    "A CI job": {"verify"},
}


def test_the_verbs_are_grouped_by_their_users(autopsy):
    answer = autopsy("--help")
    assert answer.code == 0
    for group, verbs in GROUPS.items():
        panel = answer.out[answer.out.index(f" {group} ") :].partition("╰")[0]
        assert set(re.findall(r"^│ (\w+) ", panel, re.MULTILINE)) == verbs


def test_the_version_is_that_of_the_package(autopsy):
    answer = autopsy("--version")
    assert (answer.code, answer.out) == (0, f"autopsy {version('loss-autopsy')}\n")


@pytest.mark.parametrize(
    "arguments",
    [["nope"], ["verify"], ["show"], ["show", "a", "b"], ["ui", "--port", "x"]],
)
def test_a_wrong_usage_ends_with_2(autopsy, arguments):
    answer = autopsy(*arguments)
    assert answer.code == 2
    assert "Usage: autopsy" in answer.err


def test_without_a_verb_there_is_help(autopsy):
    answer = autopsy()
    assert answer.code == 2
    assert "train" in answer.out + answer.err


def test_a_file_name_that_is_too_long_is_one_line(autopsy):
    answer = autopsy("train", "steps=1", "tracking=none", f"paths.root={'x' * 300}")
    assert answer.code == 1
    assert answer.line.endswith("found: File name too long")


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none_is_refused(autopsy, tmp_path, port):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mlflow.db").write_text("")
    answer = autopsy("ui", "--port", port)
    assert answer.code == 2
    assert answer.line == f"autopsy: --port: expected 1 to 65535, got {port}"


def test_a_port_in_use_is_refused_before_anything_starts(autopsy, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mlflow.db").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = autopsy("ui", "--port", port)
    assert answer.code == 2
    assert answer.line == (
        f"autopsy: --port: expected a free port of 127.0.0.1, found {port}: "
        "Address already in use"
    )


def test_there_is_no_ui_before_the_first_run(autopsy):
    answer = autopsy("ui")
    assert answer.code == 2
    assert "expected experiments/mlflow.db, found none" in answer.line
