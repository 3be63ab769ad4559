"""``autopsy dashboard`` and ``compare``: pages, errors, and the run in MLflow."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from types import SimpleNamespace

import pytest

from minigpt import atomic
from runners import tracked
from runners.dashboard import COMPARISON, DASHBOARD
from tests.analysis.dashboard.runs import page_json, visible
from tests.runners.commands import AUTOPSY, run

RUN_ID = "ab" * 16


def page_of(path):
    return page_json(path.read_text("utf-8"))


def link(folder, text=None):
    (folder / "mlflow.json").write_text(text or json.dumps({"run_id": RUN_ID}))


@pytest.fixture
def twin(copied):
    """A second run beside ``healthy``, of another name."""
    folder = shutil.copytree(copied, copied.with_name("twin"))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"name": "twin"}))
    return folder


def no_page_in(folder):
    return not [path for path in folder.rglob("*") if "html" in path.name]


# -- dashboard -------------------------------------------------------------------------


def test_a_page_is_drawn_into_the_folder_of_the_run(autopsy, copied):
    answer = autopsy("dashboard", "healthy")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        "experiments/healthy/dashboard.html",
        "not tracked in MLflow, so attached to no run",
    ]
    page = page_of(copied / DASHBOARD)
    assert (page["title"], page["steps"]) == ("healthy", [0, 29])
    assert page["baseline"] is None
    assert all(not c["absent"] for panel in page["panels"] for c in panel["charts"])
    assert page["batches"]["problem"] == ""
    assert page["batches"]["kept"] == 30


def test_drawn_again_it_is_the_same_page(autopsy, copied):
    pages = set()
    for _ in range(2):
        autopsy("dashboard", "healthy")
        pages.add((copied / DASHBOARD).read_bytes())
    assert len(pages) == 1
    assert [path.name for path in copied.glob("*html*")] == [DASHBOARD]


def test_with_a_baseline(autopsy, copied, twin):
    assert autopsy("dashboard", "healthy", "--baseline", twin).code == 0
    assert page_of(copied / DASHBOARD)["baseline"] == "twin"
    assert no_page_in(twin)


def test_the_page_of_a_fault_does_not_name_it(autopsy, tmp_path):
    fault = ("injection=bad_batch", "injection_step=5", "steps=9", "name=x")
    run(*fault, root=tmp_path / "experiments")
    assert autopsy("dashboard", "x").code == 0
    text = (tmp_path / "experiments" / "x" / DASHBOARD).read_text("utf-8")
    words = visible(text).lower() + json.dumps(page_json(text)).lower()
    assert "bad_batch" not in words
    assert "injection" not in words


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["nobody"], "run nobody: no such run below experiments; close"),
        (["./nobody"], "nobody: expected a run folder, found no such folder"),
        ([""], "run '': expected a run folder, a name"),
        (["healthy", "--baseline", "nobody"], "run nobody: no such run"),
        (["healthy", "--baseline", ""], "run '': expected a run folder"),
        (["healthy", "--uri", "file:x"], "--uri: got 'file:x'"),
        (["ab" * 16], "MLflow store: expected experiments/mlflow.db, found none"),
    ],
)
def test_a_bad_reference_is_one_line_and_no_page(autopsy, copied, arguments, found):
    answer = autopsy("dashboard", *arguments)
    assert answer.code == 2
    assert found in answer.line
    assert no_page_in(copied.parent)


@pytest.mark.parametrize("arguments", [["healthy"], ["twin", "--baseline", "healthy"]])
def test_a_name_that_means_two_folders_is_refused(autopsy, copied, twin, arguments):
    shutil.copytree(copied, copied.parent.parent / "healthy")
    answer = autopsy("dashboard", *arguments)
    assert answer.code == 2
    assert answer.line.startswith("autopsy: healthy: expected one run, found 2: ")
    assert no_page_in(copied.parent)


def test_a_damaged_record_is_one_line_and_no_page(autopsy, copied, twin):
    (copied / "record.parquet").write_bytes(b"PAR1")
    for arguments in (["healthy"], ["twin", "--baseline", "healthy"]):
        answer = autopsy("dashboard", *arguments)
        assert answer.code == 2
        assert "expected sha256" in answer.line
    assert no_page_in(copied.parent)


@pytest.mark.parametrize(
    ("name", "number"), [("fsync", errno.ENOSPC), ("replace", errno.EROFS)]
)
@pytest.mark.parametrize("old", [None, "the old page"])
def test_a_page_that_cannot_be_written_leaves_nothing_half(
    autopsy, copied, monkeypatch, name, number, old
):
    """Root may write everywhere, so the system's answer is made here."""

    def refuse(*_):
        raise OSError(number, os.strerror(number), str(copied / DASHBOARD))

    if old:
        (copied / DASHBOARD).write_text(old)
    monkeypatch.setattr(atomic.os, name, refuse)
    answer = autopsy("dashboard", "healthy")
    assert answer.code == 1
    assert answer.line.endswith(
        f"expected to read and write it, found: {os.strerror(number)}"
    )
    left = {path.name: path.read_text() for path in copied.glob("*html*")}
    assert left == ({DASHBOARD: old} if old else {})


def test_a_folder_in_the_place_of_the_page_is_one_line(autopsy, copied):
    (copied / DASHBOARD).mkdir()
    answer = autopsy("dashboard", "healthy")
    assert answer.code == 1
    assert "Is a directory" in answer.line
    assert [path.name for path in copied.glob("*html*")] == [DASHBOARD]


def test_half_a_character_in_a_name_is_no_traceback(autopsy, copied):
    """The page could not be encoded."""
    manifest = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps(manifest | {"name": "a\ud800b"}))
    assert autopsy("dashboard", "healthy").code == 0
    assert page_of(copied / DASHBOARD)["title"] == "a\ufffdb"


# -- attached in MLflow ----------------------------------------------------------------


class Client:
    """A store with one run, which takes artifacts or does not."""

    def __init__(self, error=None):
        self.error, self.taken = error, []

    def get_run(self, run_id):
        from mlflow.exceptions import MlflowException

        if run_id != RUN_ID:
            raise MlflowException("Run not found\nand more")
        info = SimpleNamespace(run_id=run_id, experiment_id="1")
        return SimpleNamespace(info=info, data=SimpleNamespace(tags={}))

    def log_artifact(self, run_id, path):
        if self.error:
            raise self.error
        self.taken.append((run_id, path))


@pytest.fixture
def client(monkeypatch):
    client = Client()
    monkeypatch.setattr(tracked, "_client", lambda place: client)
    return client


def test_a_tracked_run_gets_its_page(autopsy, copied, client):
    link(copied)
    answer = autopsy("dashboard", "healthy")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[1] == f"attached to the MLflow run {RUN_ID}"
    assert client.taken == [(RUN_ID, f"experiments/healthy/{DASHBOARD}")]


@pytest.mark.parametrize("reference", [f"experiments/.pulled/{RUN_ID}", "."])
def test_a_pulled_run_is_known_by_its_folder(
    autopsy, copied, client, monkeypatch, reference
):
    pulled = copied.parent / ".pulled" / RUN_ID
    pulled.parent.mkdir()
    copied.rename(pulled)
    if reference == ".":
        monkeypatch.chdir(pulled)
    answer = autopsy("dashboard", reference)
    assert (answer.code, answer.err) == (0, "")
    assert [run_id for run_id, _ in client.taken] == [RUN_ID]


def test_a_store_that_refuses_the_page_costs_exit_code_1(autopsy, copied, client):
    client.error = PermissionError(errno.EACCES, "Permission denied")
    link(copied)
    answer = autopsy("dashboard", "healthy")
    assert (answer.code, answer.err) == (1, "")
    last = answer.out.splitlines()[1]
    assert last.startswith(
        "not attached to its run in MLflow: dashboard.html: expected"
    )
    assert "Permission denied" in last
    assert page_of(copied / DASHBOARD)["title"] == "healthy"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (json.dumps({"run_id": "cd" * 16}), "found: Run not found"),
        ("{", "mlflow.json: expected a JSON object with the run_id"),
        ('{"run_id": "../x"}', "mlflow.json: expected a JSON object with the run_id"),
    ],
)
def test_a_link_that_leads_nowhere_costs_exit_code_1(
    autopsy, copied, client, text, found
):
    link(copied, text)
    answer = autopsy("dashboard", "healthy")
    assert (answer.code, answer.err) == (1, "")
    assert found in answer.out.splitlines()[1]
    assert len(answer.out.splitlines()) == 2
    assert (copied / DASHBOARD).is_file()
    assert client.taken == []


def test_a_link_without_a_store(autopsy, copied):
    link(copied)
    answer = autopsy("dashboard", "healthy")
    assert answer.code == 1
    assert "MLflow store: expected experiments/mlflow.db, found none" in answer.out


# -- compare ---------------------------------------------------------------------------


def test_several_runs_on_one_page(autopsy, copied, twin):
    answer = autopsy("compare", "healthy", "twin")
    assert (answer.code, answer.err) == (0, "")
    assert answer.line == f"experiments/{COMPARISON}"
    page = page_of(copied.parent / COMPARISON)
    assert page["runs"] == ["healthy", "twin"]
    assert page["choices"] == []
    assert page["divergences"] == [
        {"run": "twin", "step": None, "text": "equal in all 30 common steps"}
    ]


def test_choices_and_the_first_differing_step(autopsy, copied, tmp_path):
    run("steps=20", "name=other", "seed=7", "injection=scale", "injection_step=5",
        root=tmp_path / "experiments")  # fmt: skip
    assert autopsy("compare", "healthy", "other").code == 0
    page = page_of(copied.parent / COMPARISON)
    choices = dict(page["choices"])
    default = str(json.loads((copied / "manifest.json").read_text())["config"]["seed"])
    assert choices["seed"] == [default, "7"]
    assert choices["steps"] == ["30", "20"]
    assert choices["injection.kind"] == ["none", "scale"]
    assert "name" not in choices
    assert page["divergences"][0]["step"] == 0
    assert "train/loss" in page["divergences"][0]["text"]


@pytest.mark.parametrize("output", ["page.html", "a/b/page.html", "/tmp-of-the-test"])
def test_the_page_goes_where_it_is_wanted(autopsy, copied, twin, tmp_path, output):
    path = tmp_path / "deep" / "x.html" if output.startswith("/") else output
    answer = autopsy("compare", "healthy", "twin", "--output", path)
    assert (answer.code, answer.line) == (0, str(path))
    assert page_of(tmp_path / path)["kind"] == "comparison"
    assert not (copied.parent / COMPARISON).exists()


@pytest.mark.parametrize(
    ("references", "found"),
    [
        (["healthy"], "runs to compare: expected 2 to 32, found 1"),
        (["healthy", "healthy"], "runs to compare: expected 2 to 32, found 1"),
        (["healthy", "./experiments/healthy"], "expected 2 to 32, found 1"),
        (["healthy", "nobody"], "run nobody: no such run below experiments; close"),
        (["healthy", "twin", ""], "run '': expected a run folder, a name"),
    ],
)
def test_runs_that_cannot_be_compared(autopsy, copied, twin, references, found):
    answer = autopsy("compare", *references)
    assert answer.code == 2
    assert found in answer.line
    assert no_page_in(copied.parent)


def test_too_many_runs_are_refused_before_they_are_read(autopsy, copied):
    """Two hundred records of a sweep would fill the memory first."""
    names = [f"run{index}" for index in range(33)]
    for name in names:
        (copied.parent / name).mkdir()
        (copied.parent / name / "manifest.json").write_text('{"status": "finished"}')
    answer = autopsy("compare", *names)
    assert (answer.code, answer.line) == (
        2,
        "autopsy: runs to compare: expected 2 to 32, found 33",
    )


def test_one_folder_by_two_paths_is_one_run(autopsy, copied):
    answer = autopsy("compare", "healthy", copied.resolve())
    assert answer.code == 2
    assert "expected 2 to 32, found 1" in answer.line


def test_no_run_at_all_is_a_mistake_of_usage(autopsy):
    answer = autopsy("compare")
    assert answer.code == 2
    assert "Missing argument" in answer.err


@pytest.mark.parametrize("output", ["folder", ".", "..", "/", ""])
def test_output_that_is_a_folder(autopsy, copied, twin, tmp_path, output):
    """``.`` has no name to write beside, which was a traceback."""
    (tmp_path / "folder").mkdir()
    answer = autopsy("compare", "healthy", "twin", "--output", output)
    assert answer.code == 2
    assert answer.line.endswith("expected a file, found a folder")
    assert no_page_in(tmp_path)


def test_nothing_but_a_page_is_replaced(autopsy, copied, twin):
    record = copied / "record.parquet"
    before = record.read_bytes()
    answer = autopsy("compare", "healthy", "twin", "--output", record)
    assert answer.code == 2
    assert "expected a new file or an older page" in answer.line
    assert record.read_bytes() == before
    page = copied / "page.html"
    for _ in range(2):  # the second time it is there
        assert autopsy("compare", "healthy", "twin", "--output", page).code == 0


@pytest.mark.parametrize("output", ["file/page.html", "file/deep/page.html"])
def test_output_below_a_file(autopsy, copied, twin, tmp_path, output):
    (tmp_path / "file").write_text("mine")
    answer = autopsy("compare", "healthy", "twin", "--output", output)
    assert answer.code == 2
    assert f"--output {output}: expected a file that can be written" in answer.line
    assert (tmp_path / "file").read_text() == "mine"
    assert no_page_in(tmp_path)


@pytest.mark.parametrize("output", ["x" * 300, "x" * 5000, "/proc/nothing/page.html"])
def test_output_that_the_system_refuses(autopsy, copied, twin, tmp_path, output):
    answer = autopsy("compare", "healthy", "twin", "--output", output)
    assert answer.code == 1
    assert "expected to read and write it, found: " in answer.line
    assert no_page_in(tmp_path)


def test_a_full_disk_leaves_the_old_page(autopsy, copied, twin, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = copied.parent / COMPARISON
    path.write_text("<!DOCTYPE html> the old page")
    monkeypatch.setattr(atomic.os, "fsync", refuse)
    answer = autopsy("compare", "healthy", "twin")
    assert (answer.code, path.read_text()) == (1, "<!DOCTYPE html> the old page")
    assert "No space left" in answer.line
    assert [one.name for one in copied.parent.glob("*html*")] == [COMPARISON]


# -- with a real store -----------------------------------------------------------------


@pytest.mark.slow
def test_the_page_is_an_artifact_of_the_run_in_a_real_store(root, shell):
    """Of a run of this machine, and of one that is only in MLflow."""
    assert AUTOPSY.is_file()
    answer = shell("train", "name=x", "steps=12")
    assert answer.code == 0, answer.out + answer.err
    run_id = json.loads((root / "x" / "mlflow.json").read_text())["run_id"]
    for reference in ("x", run_id):
        answer = shell("dashboard", reference, "--root", root)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.endswith(f"attached to the MLflow run {run_id}\n")
    (stored,) = root.glob(f"mlartifacts/{run_id}/artifacts/{DASHBOARD}")
    assert stored.read_bytes() == (root / "x" / DASHBOARD).read_bytes()

    shutil.rmtree(root / "x")
    stored.unlink()
    answer = shell("dashboard", "x", "--root", root)
    assert (answer.code, answer.err) == (0, "")
    assert page_of(stored)["title"] == "x"

    with sqlite3.connect(root / "mlflow.db") as database:
        database.execute("DELETE FROM runs")
    answer = shell("dashboard", root / ".pulled" / run_id, "--root", root)
    assert (answer.code, answer.err) == (1, "")
    assert "not attached to its run in MLflow" in answer.out
