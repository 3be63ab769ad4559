"""A run of a script: how it begins, what it takes, how it ends."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from analysis.history import load
from analysis.journal import JournalReader
from minigpt.records import InputError
from runners.folders import current_status
from runners.script import row_writer
from tests.runners.scripts import begin, manifest_of, measured, record_of


def test_the_facade_gives_init():
    import loss_autopsy
    from runners.script.init import init

    assert loss_autopsy.init is init


def test_a_run_without_watch_needs_no_torch_and_no_mlflow(tmp_path):
    code = f"""
import sys
from loss_autopsy import init
with init(root={str(tmp_path)!r}, mode="offline", name="r") as run:
    run.log({{"loss": 1.0}})
print([n for n in ("torch", "mlflow", "hydra", "omegaconf") if n in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    assert load(tmp_path / "r").scalar("loss").tolist() == [1.0]


def test_values_of_one_step_merge_until_a_higher_one_comes(tmp_path):
    with begin(tmp_path) as run:
        run.log({"a": 1, "b": 2}, step=3)
        run.log({"b": 5, "c": 6}, step=3)
        run.log({"a": 7}, step=10)
    found = record_of(run)
    assert found.steps.tolist() == [3, 10]
    assert measured(found, "a") == {3: 1, 10: 7}
    assert measured(found, "b") == {3: 5}
    assert measured(found, "c") == {3: 6}


def test_without_a_step_each_call_is_one(tmp_path):
    with begin(tmp_path) as run:
        run.log({"a": 1})
        run.log({"a": 2})
        run.log({"a": 3}, step=7)
        run.log({"a": 4})
    assert measured(record_of(run), "a") == {0: 1, 1: 2, 7: 3, 8: 4}


def test_a_lower_step_is_refused_and_changes_nothing(tmp_path):
    with begin(tmp_path) as run:
        run.log({"a": 1}, step=5)
        with pytest.raises(InputError, match="step: expected 5 or more"):
            run.log({"a": 2, "b": 1}, step=4)
        run.log({"a": 3}, step=5)
    found = record_of(run)
    assert measured(found, "a") == {5: 3}
    assert not found.has("b")


@pytest.mark.parametrize("mode", ["offline", "disabled"])
@pytest.mark.parametrize(
    ("values", "step", "named"),
    [
        ({"ok": 1.0, "bad": "x"}, None, "bad: "),
        ({"ok": 1.0, "bad": None}, None, "bad: "),
        ({"ok": 1.0, "a//b": 1.0}, None, "key: "),
        ({"ok": 1.0, "step": 1.0}, None, "key 'step'"),
        ({"ok": 1.0}, 1.5, "step: "),
        ([("ok", 1.0)], None, "log: "),
    ],
)
def test_a_refused_call_records_nothing(tmp_path, mode, values, step, named):
    run = begin(tmp_path, mode=mode)
    with pytest.raises(InputError, match=f"^{named}"):
        run.log(values, step=step)
    run.log({"after": 1.0})
    run.finish()
    if mode == "disabled":
        assert list(tmp_path.iterdir()) == []
    else:
        found = record_of(run)
        assert (found.steps.tolist(), found.has("ok")) == ([0], False)


def test_a_disabled_run_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = begin(tmp_path, mode="disabled", config={"lr": 1})
    run.config["lr"] = 2
    run.define_metric("a", "max")
    run.summary["best"] = 3
    run.log({"a": 1.0}, step=4)
    run.log_histogram("h", [1.0, 2.0])
    run.log_table("t", [{"a": 1}])
    run.alert("t")
    assert (run.folder, run.summary["a"], run.config["lr"]) == (None, 1.0, 2)
    with pytest.raises(InputError, match="4 or more"):
        run.log({"a": 1.0}, step=3)
    run.finish()
    assert list(tmp_path.iterdir()) == []


def test_every_number_is_recorded_to_the_bit(tmp_path):
    odd = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e300, 0.1]
    with begin(tmp_path) as run:
        for value in odd:
            run.log({"x": value})
    assert record_of(run).scalar("x").tobytes() == np.array(odd).tobytes()


def test_the_manifest_is_there_from_the_beginning(tmp_path):
    run = begin(
        tmp_path,
        project="p",
        group="g",
        job_type="eval",
        tags=["x", "y", "x"],
        config={"lr": 1e-3},
        notes="n",
    )
    found = manifest_of(run)
    expected = {
        "schema_version": 1,
        "name": "r",
        "kind": "logged",
        "status": "running",
        "experiment": None,
        "sweep": None,
        "config": {"lr": 1e-3},
        "tracking": {"kind": "offline", "uri": None, "experiment": "p"},
        "group": "g",
        "job_type": "eval",
        "tags": ["x", "y"],
        "notes": "n",
        "facts": {},
        "resumes": [],
        "config_changes": [],
        "config_hash": None,
        "code_hash": None,
    }
    assert expected.items() <= found.items()
    assert found["owner"]["pid"] == os.getpid()
    assert current_status(run.folder, found) == "running"
    run.finish()
    found = manifest_of(run)
    assert (found["status"], found["error"]) == ("finished", None)
    assert found["record"]["rows"] == 0
    assert len(record_of(run)) == 0


def test_git_is_that_of_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = begin(tmp_path)
    assert manifest_of(run)["git"]["commit"] is None
    assert manifest_of(run)["git"]["reason"].startswith("git: ")
    run.finish()
    for command in (
        "init -q",
        "-c user.name=a -c user.email=a@b commit -q --allow-empty -m a",
    ):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    later = begin(tmp_path, name="later")
    git = manifest_of(later)["git"]
    assert len(git["commit"]) == 40
    assert (git["dirty"], git["reason"]) == (True, None)
    later.finish()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"mode": "on"}, "mode: "),
        ({"mode": None}, "mode: "),
        ({"project": ""}, "project: "),
        ({"project": None}, "project: "),
        ({"name": "../x"}, "name: "),
        ({"name": "a/b"}, "name: "),
        ({"name": 3}, "name: "),
        ({"group": 3}, "group: "),
        ({"job_type": " "}, "job_type: "),
        ({"notes": []}, "notes: "),
        ({"tags": "abc"}, "tags: "),
        ({"tags": ["a[0]"]}, "tags: key: "),
        ({"config": {"lr": math.nan}}, "config.lr: "),
        ({"config": 3}, "config: "),
        ({"root": 3}, "root: "),
        ({"uri": "file:x", "mode": "online"}, "tracking.uri: "),
        ({"resume": "nowhere"}, "resume: "),
        ({"resume": True, "name": None}, "resume: "),
        ({"resume": 3}, "resume: "),
        ({"config": {"a": {"b": 1}, "a.b": 2}}, "config.a.b: expected once"),
    ],
)
def test_an_argument_that_is_refused_is_named_and_leaves_nothing(
    tmp_path, arguments, named
):
    with pytest.raises(InputError, match=f"^{named}"):
        begin(tmp_path / "root", **arguments)
    assert not list(tmp_path.rglob("*"))[1:]


def test_names_and_roots_have_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = begin(None, name=None, project="my / project")
    assert run.folder.parent == Path("experiments")
    assert run.name.startswith("my_project-2")
    run.finish()
    monkeypatch.setenv("AUTOPSY_ROOT", str(tmp_path / "elsewhere"))
    other = begin(None)
    assert other.folder == tmp_path / "elsewhere" / "r"
    other.finish()


def test_a_second_run_of_a_name_gets_a_folder_of_its_own(tmp_path):
    runs = [begin(tmp_path), begin(tmp_path)]
    assert [run.folder.name for run in runs] == ["r", "r-2"]
    for number, run in enumerate(runs):  # and both go on at once
        run.log({"a": number})
    for run in runs:
        run.finish()
    assert [record_of(run).scalar("a").tolist() for run in runs] == [[0], [1]]


def test_a_finished_run_takes_nothing_more(tmp_path):
    run = begin(tmp_path)
    run.finish()
    run.finish()
    for call in (
        lambda: run.log({"a": 1}),
        lambda: run.log_histogram("a", [1]),
        lambda: run.alert("a"),
        lambda: run.log_table("a", []),
        lambda: run.define_metric("a", "max"),
        lambda: run.config.update(a=1),
        lambda: run.summary.__setitem__("a", 1),
        lambda: run.watch(None, None),
    ):
        with pytest.raises(InputError, match="after finish"):
            call()


def test_another_process_may_not_use_the_run(tmp_path):
    run = begin(tmp_path)
    child = os.fork()
    if child == 0:
        try:
            run.log({"a": 1})
        except InputError as error:
            os._exit(0 if "process" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run.finish()
    assert len(record_of(run)) == 0


def test_an_exit_code_makes_a_failed_run(tmp_path, capsys):
    run = begin(tmp_path)
    with pytest.raises(InputError, match="exit_code"):
        run.finish(exit_code="1")
    run.finish(exit_code=3)
    found = manifest_of(run)
    assert (found["status"], found["error"]) == ("failed", "exit code 3")
    assert "failed (exit code 3), 0 steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RuntimeError("boom"), "failed", "RuntimeError: boom"),
        (KeyboardInterrupt(), "killed", "KeyboardInterrupt"),
        (SystemExit(2), "failed", "exit code 2"),
        (SystemExit(0), "finished", None),
    ],
)
def test_what_ends_a_with_block_is_not_swallowed(tmp_path, error, status, reason):
    run = begin(tmp_path)

    def script():
        with run:
            run.log({"a": 1})
            raise error

    with pytest.raises(type(error)):
        script()
    found = manifest_of(run)
    assert (found["status"], found["error"]) == (status, reason)
    assert len(record_of(run)) == 1


@pytest.mark.parametrize(
    ("ending", "status", "reason"),
    [
        ("", "finished", None),
        ("raise ValueError('boom')", "failed", "ValueError: boom"),
        ("raise KeyboardInterrupt", "killed", "KeyboardInterrupt"),
    ],
)
def test_a_script_that_does_not_finish_its_run_is_closed_at_its_end(
    tmp_path, ending, status, reason
):
    code = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
from loss_autopsy import init
run = init(root={str(tmp_path)!r}, mode="offline", name="r")
run.log({{"loss": 1.0}})
assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
{ending}
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    found = json.loads((tmp_path / "r" / "manifest.json").read_text())
    assert (found["status"], found["error"]) == (status, reason)
    assert found["record"]["rows"] == 1


def test_a_forked_child_that_exits_does_not_close_its_parents_run(tmp_path):
    code = f"""
import os, sys
from loss_autopsy import init
run = init(root={str(tmp_path)!r}, mode="offline", name="r")
run.log({{"loss": 1.0}})
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
run.log({{"loss": 2.0}})
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert load(tmp_path / "r").scalar("loss").tolist() == [1.0, 2.0]


def test_the_end_is_one_line_and_a_page(tmp_path, capsys):
    with begin(tmp_path) as run:
        run.log({"loss": 1.0})
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"loss-autopsy: {run.folder}: finished, 1 steps; `autopsy sync` brings it to "
        "MLflow"
    )
    assert (run.folder / "dashboard.html").read_text().startswith("<!doctype html>")


def test_committed_steps_reach_the_disk_while_the_script_waits(tmp_path):
    run = begin(tmp_path)
    for step in range(5):
        run.log({"a": step}, step=step)
    until = time.monotonic() + 4 * row_writer.FLUSH_SECONDS
    steps: list[int] = []
    while len(steps) < 4 and time.monotonic() < until:
        if (run.folder / "journal.bin").is_file():
            blocks = JournalReader(run.folder / "journal.bin").read_new()
            steps = [step for block in blocks for step in block.steps.tolist()]
        time.sleep(0.02)
    assert steps == [0, 1, 2, 3]
    assert (run.folder / "heartbeat").is_file()
    run.finish()


def test_a_full_disk_is_told_once_and_tried_again(tmp_path, monkeypatch, capsys):
    run = begin(tmp_path)
    run.log({"a": 0})
    run.log({"a": 1, "late": 2})
    time.sleep(2 * row_writer.FLUSH_SECONDS)
    journal = run._record._writer._journal
    write = journal._write

    def full(data):
        raise OSError(28, "No space left on device", "journal.bin")

    monkeypatch.setattr(journal, "_write", full)
    for step in range(2, 6):
        run.log({"a": step})
        time.sleep(1.2 * row_writer.FLUSH_SECONDS)
    assert capsys.readouterr().err.count("No space left") == 1
    monkeypatch.setattr(journal, "_write", write)
    run.finish()
    found = record_of(run)
    assert found.scalar("a").tolist() == [0, 1, 2, 3, 4, 5]
    assert measured(found, "late") == {1: 2}


def test_too_many_waiting_rows_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(row_writer, "MAX_WAITING", 4)
    run = begin(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(row_writer.RowWriter, "_write", lambda self: None)
        for step in range(4):
            run.log({"a": step})
        with pytest.raises(OSError, match="4 rows could not be written"):
            run.log({"a": 9})
    run.finish()
    assert record_of(run).scalar("a").tolist() == [0, 1, 2, 3]


def test_a_disk_that_stays_full_makes_finish_fail(tmp_path, monkeypatch):
    run = begin(tmp_path)
    run.log({"a": 0})

    def full(self):
        raise OSError(28, "No space left on device", "journal.bin")

    monkeypatch.setattr(row_writer.RowWriter, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        run.finish()


def test_a_run_has_a_bounded_number_of_keys(tmp_path, monkeypatch):
    from runners.script import record as logged_record

    monkeypatch.setattr(logged_record, "MAX_COLUMNS", 3)
    with begin(tmp_path) as run:
        run.log({"a": 1, "b": 2, "c": 3})
        with pytest.raises(InputError, match="at most 3 keys in a run, got 4"):
            run.log({"d": 1})
        run.log({"a": 4})
    assert record_of(run).scalar("a").tolist() == [1, 4]


def test_logging_takes_no_time_that_a_step_would_notice(tmp_path):
    with begin(tmp_path) as run:
        slowest = 0.0
        for step in range(3000):
            start = time.perf_counter()
            run.log({"a": step, "b": 1.0}, step=step)
            slowest = max(slowest, time.perf_counter() - start)
    assert len(record_of(run)) == 3000
    assert slowest < 0.1
