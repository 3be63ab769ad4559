"""Fetching runs from MLflow, with a client in memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from analysis.history import load
from minigpt.records import InputError
from runners import tracked
from runners.mlflow_tags import NOTE
from runners.settings import StoreError
from runners.tracked import Place, attach, find_by_config, pull, search

RUN_ID = "cd" * 16


class Client:
    """One run whose artifacts are the files of a folder."""

    def __init__(self, folder, **tags):
        self.folder, self.tags, self.downloads = folder, tags, []
        self.pages = {None: ([], None)}
        self.queries, self.uploads = [], []

    def get_run(self, run_id):
        if run_id != RUN_ID:
            raise MlflowException("Run not found\nand more")
        info = SimpleNamespace(run_id=run_id, experiment_id="1")
        return SimpleNamespace(info=info, data=SimpleNamespace(tags=self.tags))

    def log_artifact(self, run_id, path):
        self.uploads.append((run_id, path))

    def set_tag(self, run_id, key, value):
        self.tags[key] = value

    def list_artifacts(self, run_id):
        return [SimpleNamespace(path=path.name) for path in self.folder.iterdir()]

    def download_artifacts(self, run_id, name, target):
        self.downloads.append(name)
        shutil.copy(self.folder / name, Path(target) / name)

    def search_experiments(self):
        return [SimpleNamespace(name="lab", experiment_id="1")]

    def search_runs(self, experiments, query, order_by, page_token):
        self.queries.append((experiments, query))
        if "===" in query:
            raise MlflowException("Invalid comparator\nand more")
        runs, token = self.pages[page_token]
        return _Page(runs, token)


class _Page(list):
    def __init__(self, runs, token):
        super().__init__(runs)
        self.token = token


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path / "experiments")


@pytest.fixture
def client(copied, tmp_path, monkeypatch):
    """A store with the finished run; its folder is not below the root."""
    folder = copied.rename(tmp_path / "artifacts")
    sha256 = tracked.read_manifest(folder)["record"]["sha256"]
    client = Client(folder, record_sha256=sha256)
    monkeypatch.setattr(tracked, "_client", lambda place: client)
    return client


def test_a_run_is_fetched_whole(client, place):
    folder = pull(RUN_ID, place)
    assert folder == place.root / ".pulled" / RUN_ID
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json", "record.parquet", "vocabulary.json"
    }  # fmt: skip
    assert load(folder).notes == []
    assert [path.name for path in folder.parent.iterdir()] == [RUN_ID]


def test_a_run_is_fetched_once(client, place):
    pull(RUN_ID, place)
    downloads = len(client.downloads)
    pull(RUN_ID, place)
    assert len(client.downloads) == downloads


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "record.parquet").write_bytes(b"half"),
        lambda folder: (folder / "record.parquet").unlink(),
        lambda folder: (folder / "manifest.json").unlink(),
    ],
)
def test_what_is_there_and_damaged_is_fetched_again(client, place, damage):
    damage(pull(RUN_ID, place))
    assert load(pull(RUN_ID, place)).notes == []


def refused(run_id, place) -> str:
    with pytest.raises(InputError) as caught:
        pull(run_id, place)
    assert "\n" not in str(caught.value)
    assert not list(place.root.glob(".pulled/*"))
    return str(caught.value)


def test_artifacts_that_are_not_those_of_the_run_are_refused(client, place):
    client.tags["record_sha256"] = "0" * 64
    assert f"expected the record {'0' * 64} that MLflow names" in refused(RUN_ID, place)


def test_a_record_that_was_changed_in_the_store_is_refused(client, place):
    (client.folder / "record.parquet").write_bytes(b"changed")
    assert "that MLflow names, found" in refused(RUN_ID, place)


def test_a_run_without_artifacts_was_not_recorded_by_us(client, place):
    shutil.rmtree(client.folder)
    client.folder.mkdir()
    assert (
        "expected the artifacts of a recorded run, found no manifest.json"
        in refused(RUN_ID, place)
    )


def test_artifacts_that_cannot_be_reached_are_one_line(client, place, monkeypatch):
    def away(*_):
        raise MlflowException("No such artifact\nand more")

    monkeypatch.setattr(client, "download_artifacts", away)
    assert "expected its artifacts, found: No such artifact" in refused(RUN_ID, place)


def test_an_unknown_run_is_one_line(client, place):
    assert refused("0" * 32, place).endswith("found: Run not found")


def test_a_fetch_that_breaks_off_leaves_nothing_half(client, place, monkeypatch):
    real = client.download_artifacts

    def broken(run_id, name, target):
        real(run_id, name, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "download_artifacts", broken)
    with pytest.raises(KeyboardInterrupt):
        pull(RUN_ID, place)
    assert list(place.root.glob(".pulled/*")) == []


def test_another_process_that_fetched_it_first_is_no_error(client, place, monkeypatch):
    real, rename = client.download_artifacts, Path.rename

    def race(path, target):
        if not target.exists():
            shutil.copytree(path, target)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", race)
    assert load(pull(RUN_ID, place)).notes == []
    assert real


# -- attaching -------------------------------------------------------------------------


def test_an_attached_page_is_linked_in_the_note_of_its_run_once(client, place):
    client.tags[NOTE] = "What it is\n\nmore"
    for _ in range(2):
        attach(Path("dashboard.html"), RUN_ID, place)
    address = f"#/experiments/1/runs/{RUN_ID}/artifacts/dashboard.html"
    assert client.tags[NOTE] == f"What it is\n[dashboard]({address})\n\nmore"
    assert client.uploads == [(RUN_ID, "dashboard.html")] * 2


def test_a_run_without_a_note_gets_none(client, place):
    attach(Path("dashboard.html"), RUN_ID, place)
    assert NOTE not in client.tags


# -- searching -------------------------------------------------------------------------


def mlflow_run(run_id, **tags):
    return SimpleNamespace(
        info=SimpleNamespace(run_id=run_id, run_name=f"run-{run_id}"),
        data=SimpleNamespace(tags=tags),
    )


def test_every_page_is_read(client, place):
    client.pages = {None: (["a", "b"], "next"), "next": (["c"], None)}
    assert search(place, "q") == ["a", "b", "c"]
    assert client.queries == [(["1"], "q")] * 2


def test_an_experiment_that_is_not_there_names_those_that_are(client, place):
    with pytest.raises(InputError, match="expected one of lab; got 'lob'"):
        search(place, "q", "lob")


def test_a_filter_that_mlflow_does_not_understand_is_one_line(client, place):
    with pytest.raises(InputError, match=r"MLflow filter a === 1: Invalid comparator$"):
        search(place, "a === 1")


def test_the_newest_run_of_this_code_is_the_one(client, place):
    runs = [mlflow_run("3", code_hash="new"), mlflow_run("2", code_hash="old")]
    client.pages = {None: ([*runs, mlflow_run("1", code_hash="old")], None)}
    assert find_by_config(place, "hash", "old").info.run_id == "2"
    ((_, query),) = client.queries
    assert query == "tags.config_hash = 'hash' and attributes.status = 'FINISHED'"


def test_runs_of_other_code_are_stale_and_named(client, place):
    runs = [mlflow_run("3", code_hash="new"), mlflow_run("2")]
    client.pages = {None: (runs, None)}
    with pytest.raises(
        InputError, match="stale: made by other code than this: run-3, run-2"
    ):
        find_by_config(place, "hash", "old")


def test_a_run_whose_replay_differed_is_no_run_of_its_config(client, place):
    mixed = mlflow_run("2", code_hash="code", replay_differs="true")
    client.pages = {None: ([mixed, mlflow_run("1", code_hash="code")], None)}
    assert find_by_config(place, "hash", "code").info.run_id == "1"
    client.pages = {None: ([mixed], None)}
    assert find_by_config(place, "hash", "code") is None


def test_no_run_is_none(client, place):
    assert find_by_config(place, "hash", "code") is None


def test_a_root_without_a_store_says_so(place):
    with pytest.raises(
        StoreError, match=r"expected .*experiments/mlflow\.db, found none"
    ):
        search(place, "q")
