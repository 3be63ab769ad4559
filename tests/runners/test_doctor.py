"""``autopsy doctor``: its table, its exit codes, and that it changes nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from runners.doctor import command as module
from runners.doctor.check import NOT_APPLICABLE, OK, PROBLEM, WARNING, Check, within
from runners.tracked import Place


def snapshot(folder) -> dict[str, tuple]:
    """Every file and folder below: its bytes, and when it was last changed."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (content, path.stat().st_mtime_ns)
    return found


def test_a_sound_root_has_nothing_to_do(autopsy, root):
    answer = autopsy("doctor")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[-1] == "nothing to do"
    assert "whole, " in answer.out


def test_it_changes_nothing(autopsy, copied, empty_store, tmp_path):
    """Not with a damaged run, half a write and a store that is behind either."""
    root = copied.parent
    (root / "mlflow.db").write_bytes(empty_store.read_bytes())
    with sqlite3.connect(root / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    (root / "bad").mkdir()
    (root / "bad" / "manifest.json").write_text("{")
    (root / "healthy" / "manifest.json.1-2.tmp").write_text("half")
    before = snapshot(tmp_path)
    answer = autopsy("doctor")
    assert answer.code == 1
    assert "451aebb31d03" in answer.out
    assert snapshot(tmp_path) == before


def test_it_makes_neither_root_nor_store(autopsy, tmp_path):
    answer = autopsy("doctor", "--root", tmp_path / "deep" / "new")
    assert (answer.code, answer.err) == (0, "")
    assert "no such folder yet" in answer.out
    assert list(tmp_path.iterdir()) == []


def test_a_warning_is_no_problem(autopsy, copied):
    answer = autopsy("doctor")
    assert answer.code == 0
    assert "not complete there" not in answer.out  # trained without tracking
    manifest = copied / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["config"]["tracking"]["kind"] = "mlflow"
    facts["tracking"] = facts["config"]["tracking"]
    manifest.write_text(json.dumps(facts))
    answer = autopsy("doctor")
    assert answer.code == 0
    (line,) = (line for line in answer.out.splitlines() if line.startswith("warning:"))
    assert line == (
        "warning: runs in MLflow: 1 not complete there: healthy; to do: `autopsy sync`"
    )
    assert answer.out.splitlines()[-1] == "0 problems, 1 warning"


@pytest.mark.parametrize("uri", ["mlruns", "ftp://x", "file:///x"])
def test_what_is_no_address_is_a_usage_mistake(autopsy, uri):
    answer = autopsy("doctor", "--uri", uri)
    assert answer.code == 2
    assert "--uri" in answer.line


def test_a_row_for_every_answer(monkeypatch, capsys):
    rows = [Check(f"[{one}]", one, "f") for one in (OK, WARNING, PROBLEM)]
    rows.append(Check("none", NOT_APPLICABLE, "because"))
    monkeypatch.setattr(module, "check_environment", lambda _: rows)
    for name in ("check_folder", "check_store", "check_runs"):
        monkeypatch.setattr(module, name, lambda _: [])
    assert module.doctor(Place(Path("x")), Console()) == 1
    out = capsys.readouterr().out
    for part in ("[ok]", "[warning]", "[problem]", "not applicable", "because"):
        assert part in out
    assert out.splitlines()[-1] == "1 problem, 1 warning"


def test_it_needs_neither_torch_nor_mlflow(root):
    code = "import sys; from runners.cli import main\ntry: main()\nfinally: "
    code += "print(sorted({'torch', 'mlflow', 'hydra'} & set(sys.modules)))"
    command = [sys.executable, "-c", code, "doctor", "--root", root]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_look_that_takes_too_long_is_left(monkeypatch):
    ended = threading.Event()
    try:
        assert within(0.05, lambda: ended.wait(20) and []) is None
    finally:
        ended.set()
    assert within(5, lambda: [Check("a", OK, "b")]) == [Check("a", OK, "b")]
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)


def test_a_folder_that_cannot_be_written_is_a_problem(autopsy, root, monkeypatch):
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not mode & os.W_OK and real(path, mode)
    )
    answer = autopsy("doctor")
    assert answer.code == 1
    assert f"root: {root}: cannot be written" in answer.out
    assert "file of the store: it, or the folder it is in, cannot" in answer.out
