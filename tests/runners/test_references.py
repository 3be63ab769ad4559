"""From a reference to run folders, with an MLflow that a dictionary stands for."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest

from minigpt.records import InputError
from runners import references as module
from runners.references import resolve, resolve_one
from runners.settings import StoreError
from runners.tracked import Place, store_uri
from tests.runners.commands import run

IDS = [f"{number:032x}" for number in range(9)]


def fake_run(run_id, name="x", **tags):
    info = SimpleNamespace(run_id=run_id, run_name=name)
    return SimpleNamespace(info=info, data=SimpleNamespace(tags=tags))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A root in the working folder, with the runs a and b and no MLflow."""
    monkeypatch.chdir(tmp_path)
    return Place((tmp_path / "experiments").relative_to(tmp_path))


@pytest.fixture
def runs(place, copied, tmp_path):
    for name in ("run-a", "run-b"):
        shutil.copytree(copied, place.root / name)
    shutil.rmtree(copied)
    return place.root


@pytest.fixture
def mlflow(monkeypatch, place):
    """What the store answers: searches by their filter, runs by their id."""
    store = SimpleNamespace(searches={}, runs={}, asked=[], pulled=[])

    def search(place, query, experiment=None):
        store.asked.append((query, experiment))
        return store.searches.get(query, [])

    def find(run_id, place):
        if run_id not in store.runs:
            raise InputError(f"run {run_id}: expected a run of the MLflow store")
        return store.runs[run_id]

    def pull(run_id, place):
        store.pulled.append(run_id)
        return place.root / ".pulled" / run_id

    for function in (search, find, pull):
        monkeypatch.setattr(module, function.__name__, function)
    monkeypatch.setattr(module, "store_uri", lambda place: "sqlite:///x")
    return store


def link(folder, run_id):
    (folder / "mlflow.json").write_text(json.dumps({"run_id": run_id}))


def refusal(reference, place) -> str:
    with pytest.raises(InputError) as caught:
        resolve(reference, place)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- without MLflow --------------------------------------------------------------------


def test_a_name_is_a_folder_of_the_root(runs, place):
    assert resolve("run-a", place) == [runs / "run-a"]
    assert resolve_one("run-a", place) == runs / "run-a"


def test_a_path_is_a_folder_wherever_it_is(runs, place, tmp_path, monkeypatch):
    elsewhere = tmp_path / "else where"
    shutil.copytree(runs / "run-a", elsewhere / "run-c")
    assert resolve(str(elsewhere / "run-c"), place) == [elsewhere / "run-c"]
    assert resolve("./experiments/run-a/", place)[0].samefile(runs / "run-a")
    monkeypatch.chdir(elsewhere / "run-c")
    assert resolve(".", place)[0].samefile(elsewhere / "run-c")


def test_a_folder_in_the_working_folder_is_found_by_its_name(runs, place, tmp_path):
    (runs / "run-a").rename(tmp_path / "run-c")
    assert resolve("run-c", place)[0].samefile(tmp_path / "run-c")


def test_a_name_that_is_two_folders_is_refused_with_both(runs, place, tmp_path):
    shutil.copytree(runs / "run-a", tmp_path / "run-a")
    message = refusal("run-a", place)
    assert "expected one run, found 2: experiments/run-a, ./run-a" in message


def test_one_folder_reached_by_two_ways_is_one_run(runs, place, monkeypatch):
    monkeypatch.chdir(runs)
    assert resolve("run-a", Place(runs.__class__(".")))[0].samefile("run-a")


def test_an_unknown_name_shows_what_is_close(runs, place):
    message = refusal("run-x", place)
    assert "run run-x: no such run below experiments" in message
    assert "close to it: run-" in message
    assert "close to it: run-a, run-b" in refusal("zzz", place)


def test_an_empty_root_says_so(place):
    assert "there are none" in refusal("x", place)
    assert store_uri(place) is None


@pytest.mark.parametrize(
    "reference",
    ["", " *", "a'b", "x;y", ".hidden", "a\nb", "ñ", "x" * 201, "a:b", "a: b"],
)
def test_what_is_no_reference_says_what_is(place, reference):
    assert "expected a run folder, a name, an MLflow run id" in refusal(
        reference, place
    )


@pytest.mark.parametrize(
    ("reference", "part"),
    [
        ("./nothing", "found no such folder"),
        ("experiments/..", "found no manifest.json in it"),
        ("..", "found no manifest.json in it"),
        ("x/" * 3000, "File name too long"),
        ("/dev/null", "found no such folder"),
    ],
)
def test_a_path_that_is_no_run_says_what_is_missing(runs, place, reference, part):
    assert part in refusal(reference, place)


@pytest.mark.parametrize("text", ["", "[]", "{", "\0"])
def test_a_folder_with_a_foreign_manifest_is_refused(runs, place, text):
    (runs / "run-a" / "manifest.json").write_text(text)
    assert "expected a JSON object" in refusal("./experiments/run-a", place)


# -- sweeps ----------------------------------------------------------------------------


@pytest.fixture
def sweep(runs):
    """The sweep s-1 of run-b and then run-a."""
    for name, started in (("run-a", "2026-01-02"), ("run-b", "2026-01-01")):
        path = runs / name / "manifest.json"
        manifest = json.loads(path.read_text()) | {
            "sweep": "s-1",
            "started_at": started,
        }
        path.write_text(json.dumps(manifest))
    (runs / ".sweeps" / "s-1").mkdir(parents=True)
    (runs / ".sweeps" / "s-1" / "sweep.json").write_text("{}")
    return "s-1"


def test_a_sweep_is_its_runs_in_their_order(sweep, runs, place):
    assert resolve(sweep, place) == [runs / "run-b", runs / "run-a"]


def test_a_damaged_run_does_not_hide_the_others_of_its_sweep(sweep, runs, place):
    (runs / "run-a" / "manifest.json").write_text("{")
    assert resolve(sweep, place) == [runs / "run-b"]


def test_a_sweep_is_not_one_run(sweep, place):
    with pytest.raises(
        InputError, match="s-1: expected one run, found 2: run-b, run-a"
    ):
        resolve_one(sweep, place)


def test_a_sweep_that_left_no_run_says_so(runs, place):
    (runs / ".sweeps" / "s-2").mkdir(parents=True)
    (runs / ".sweeps" / "s-2" / "sweep.json").write_text("{}")
    assert refusal("s-2", place) == "sweep s-2: expected its runs, found none"


def test_a_run_called_as_a_sweep_wins(sweep, runs, place):
    (runs / "run-a").rename(runs / "s-1")
    assert resolve("s-1", place) == [runs / "s-1"]


# -- with MLflow -----------------------------------------------------------------------


def test_a_run_id_is_the_folder_that_names_it(runs, place, mlflow):
    link(runs / "run-b", IDS[1])
    mlflow.runs[IDS[1]] = fake_run(IDS[1])
    assert resolve(IDS[1], place) == [runs / "run-b"]
    assert mlflow.pulled == []


def test_a_run_that_only_mlflow_has_is_fetched(runs, place, mlflow):
    mlflow.runs[IDS[2]] = fake_run(IDS[2])
    assert resolve(IDS[2], place) == [runs / ".pulled" / IDS[2]]


def test_a_damaged_link_hides_no_other_run(runs, place, mlflow):
    (runs / "run-a" / "mlflow.json").write_text("{")
    link(runs / "run-b", IDS[1])
    mlflow.runs[IDS[1]] = fake_run(IDS[1])
    assert resolve(IDS[1], place) == [runs / "run-b"]


def test_an_unknown_run_id_is_refused(runs, place, mlflow):
    assert "expected a run of the MLflow store" in refusal(IDS[3], place)


def test_a_name_that_only_mlflow_has_is_fetched(runs, place, mlflow):
    mlflow.searches["attributes.run_name = 'far'"] = [fake_run(IDS[4])]
    assert resolve("far", place) == [runs / ".pulled" / IDS[4]]


def test_a_name_that_mlflow_has_twice_is_refused_with_the_ids(runs, place, mlflow):
    found = [fake_run(IDS[4]), fake_run(IDS[5])]
    mlflow.searches["attributes.run_name = 'far'"] = found
    assert refusal("far", place) == (
        f"run far: expected one run, found 2: {IDS[4]}, {IDS[5]}"
    )


def test_the_parent_of_a_sweep_means_its_runs(sweep, runs, place, mlflow):
    mlflow.runs[IDS[6]] = fake_run(IDS[6], sweep="s-1", sweep_parent="true")
    assert resolve(IDS[6], place) == [runs / "run-b", runs / "run-a"]


def test_a_sweep_that_only_mlflow_has_is_fetched(runs, place, mlflow):
    parent = fake_run(IDS[6], sweep="s-9", sweep_parent="true")
    mlflow.runs[IDS[6]] = parent
    mlflow.searches["tags.sweep = 's-9'"] = [parent, fake_run(IDS[7]), fake_run(IDS[8])]
    assert resolve(IDS[6], place) == [runs / ".pulled" / i for i in IDS[7:9]]


def test_an_experiment_and_a_filter_are_passed_on(runs, place, mlflow):
    link(runs / "run-a", IDS[1])
    mlflow.searches["params.clip = '0.5'"] = [fake_run(IDS[1]), fake_run(IDS[2])]
    found = resolve("my lab: params.clip = '0.5'", place)
    assert found == [runs / "run-a", runs / ".pulled" / IDS[2]]
    assert mlflow.asked == [("params.clip = '0.5'", "my lab")]


def test_a_filter_that_nothing_meets_says_so(runs, place, mlflow):
    message = refusal("lab: tags.seed LIKE '7%'", place)
    assert message.endswith("expected runs that meet the filter, found none")


def test_a_local_name_does_not_wait_for_mlflow(runs, place, mlflow, monkeypatch):
    def away(*_):
        raise StoreError("away")

    monkeypatch.setattr(module, "search", away)
    assert resolve("run-a", place) == [runs / "run-a"]


@pytest.mark.parametrize(
    "uri", ["./mlruns", "mlruns", "ftp://u:s3cret@host", "sqlite://"]
)
def test_a_place_with_an_address_of_no_store_is_refused(tmp_path, uri):
    with pytest.raises(InputError, match="--uri") as caught:
        Place(tmp_path, uri)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("name", ["50%", "what?"])
def test_a_root_that_no_address_can_hold_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "mlflow.db").write_text("")
    with pytest.raises(InputError, match=r"without \? and % in its path"):
        store_uri(Place(tmp_path / name))


def test_a_second_run_of_a_name_is_meant_by_its_own_name(tmp_path):
    for _ in range(2):
        run("steps=1", "name=x", root=tmp_path)
    found = [resolve_one(name, Place(tmp_path)).name for name in ("x", "x-2")]
    assert found == ["x", "x-2"]
