"""RunConfig: what composes to it, how it is checked, hashed and named."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
from omegaconf import OmegaConf

from minigpt.injections import config_class
from minigpt.records import InputError
from runners.compose import compose_config
from runners.config import RunConfig, config_hash, to_plain
from runners.schema import from_hydra, from_plain
from runners.settings import TrackingConfig


@cache
def composed(*overrides: str) -> RunConfig:
    return compose_config(list(overrides))


def plain(*overrides: str) -> dict:
    return deepcopy(to_plain(composed(*overrides)))


@pytest.mark.parametrize(
    ("spelling", "value"),
    [("0.5", 0.5), ("1.0", 1.0), ("1", 1.0), ("5e-1", 0.5), ("null", None)],
)
def test_clip_takes_numbers_and_null(spelling, value):
    clip = composed(f"clip={spelling}").clip
    assert clip == value
    assert clip is None or type(clip) is float


def test_data_seed_follows_the_seed_unless_given():
    assert composed("seed=7").data_seed == 7
    assert composed("seed=7", "data_seed=8").data_seed == 8
    assert composed("seed=7", "data_seed=${injection_step}").data_seed == 500


def test_nothing_of_omegaconf_is_left_below_the_boundary():
    def walk(node):
        assert not OmegaConf.is_config(node)
        for item in vars(node).values() if hasattr(node, "__dict__") else ():
            walk(item)
        for item in node.values() if isinstance(node, dict) else ():
            walk(item)
        for item in node if isinstance(node, list) else ():
            walk(item)

    walk(composed("injection=scale"))


def test_composing_works_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert compose_config(["injection=scale"]) == composed("injection=scale")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("overrides", [(), ("injection=bad_batch", "clip=null")])
def test_plain_form_survives_json(overrides):
    config = composed(*overrides)
    assert from_plain(json.loads(json.dumps(to_plain(config)))) == config


def test_plain_form_keeps_the_experiment():
    config = composed("experiment=19-injection-A")
    assert from_plain(to_plain(config)).experiment == "19-injection-A"


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("stps", 5, ["stps: no such key", "did you mean steps?"]),
        ("steps", 1.5, ["steps: expected a whole number", "1.5"]),
        ("seed", "abc", ["seed: expected a whole number", "'abc'"]),
        ("seed", None, ["seed: expected a whole number", "null"]),
        ("seed", -1, ["seed: expected 0 to", "-1"]),
        ("data_seed", 2**63, ["data_seed: expected 0 to"]),
        ("clip", True, ["clip: expected a number or null", "true"]),
        ("clip", 0, ["clip: expected a finite number > 0", "0.0"]),
        ("clip", float("nan"), ["clip: expected a finite number > 0", "nan"]),
        ("clip", float("inf"), ["clip: expected a finite number > 0", "inf"]),
        ("steps", 0, ["steps: expected at least 1", "0"]),
        ("threads", 0, ["threads: expected at least 1", "0"]),
        ("injection_step", 2000, ["injection_step", "(1999)", "=scale", "2000"]),
        ("injection_step", -1, ["injection_step: expected 0 to", "-1"]),
        ("cadence", 5, ["cadence: expected keys (validation, spectral, probe)", "5"]),
        ("cadence", None, ["cadence: expected keys", "null"]),
        ("seed", "???", ["seed: no value yet", "seed=..."]),
        ("seed", "${nope}", ["seed: ", "nope"]),
        ("seed", "${steps.x}", ["seed: "]),
        ("seed", "${data_seed}", ["seed: ", "Recursive"]),
        ("injection.kind", "scal", ["injection: expected one of", "'scal'"]),
        ("injection.factr", 3, ["injection.factr", "did you mean factor?"]),
        ("injection.factor", "big", ["injection.factor: expected a number", "'big'"]),
        ("injection.factor", float("inf"), ["injection.factor: expected a finite"]),
        ("injection.predictions", 5, ["injection.predictions: expected a list", "5"]),
        ("loader.batch_size", 0, ["loader.batch_size", "0"]),
        ("loader.kind", "sorted", ["loader.kind", "stratified", "'sorted'"]),
        ("precision.dtype", "fp8", ["precision.dtype: expected 'float32'", "'fp8'"]),
        (
            "tracking.kind",
            "wandb",
            ["tracking.kind", "mlflow, offline, none", "'wandb'"],
        ),
        ("tracking.experiment", " ", ["tracking.experiment: expected a name"]),
        ("paths.root", "", ["paths.root: expected a folder", "''"]),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(key, value, parts):
    tree = plain("injection=scale")
    tree["data_seed"] = "${seed}"
    node = tree
    *parents, last = key.split(".")
    for parent in parents:
        node = node[parent]
    node[last] = value
    tree.pop("experiment")
    with pytest.raises(InputError) as caught:
        from_hydra(OmegaConf.create(tree))
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


def test_a_fault_without_a_step_ignores_the_injection_step():
    assert composed("steps=10").injection_step == 500


@pytest.mark.parametrize("name", ["a", "19-injection-A", "a b_c.d", "x" * 120, "-"])
def test_legal_names(name):
    assert RunConfig(name=name).name == name


@pytest.mark.parametrize(
    "name",
    ["", ".x", "a/b", "a\\b", "..", "a..b", "x" * 121, "ñ", "a\n", " a", "a ", "a:b"],
)
def test_a_name_that_could_be_a_path_is_refused(name):
    with pytest.raises(InputError, match="name: expected"):
        RunConfig(name=name)


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:///x.db",
        "sqlite:////abs/x.db",
        "http://localhost:5000",
        "https://host/path",
        "postgresql://u:p@host/db",
        "postgresql+psycopg://u:p@host/db",
        "mysql+pymysql://u:p@host/db",
        None,
    ],
)
def test_stores_that_mlflow_takes(uri):
    assert TrackingConfig(uri=uri).uri == uri


@pytest.mark.parametrize("uri", ["./mlruns", "mlruns", "/x/mlruns", "file:///x", ""])
def test_a_folder_as_store_is_refused_with_the_way_out(uri):
    with pytest.raises(InputError, match=r"sqlite:///mlflow\.db.*migrate-filestore"):
        TrackingConfig(uri=uri)


@pytest.mark.parametrize("uri", ["sqlite://", "ftp://u:secret@host", "postgresql://"])
def test_other_stores_are_refused_without_showing_a_password(uri):
    with pytest.raises(InputError, match=r"tracking\.uri: expected") as caught:
        TrackingConfig(uri=uri)
    assert "secret" not in str(caught.value)


# -- identity ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override",
    "name=x paths.root=x tracking=none checkpoint.every=0 clip=1 injection_step=7 "
    "experiment=18-baseline ~injection data_seed=42".split(),
)
def test_hash_ignores_what_leaves_the_record_as_it_is(override):
    assert config_hash(composed(override)) == config_hash(composed())


@pytest.mark.parametrize(
    "override",
    "seed=43 data_seed=43 clip=0.5 clip=null steps=1999 threads=2 injection=scale "
    "loader=stratified model.d_ff=128 optimizer.eps=1e-7 schedule.warmup_steps=0 "
    "cadence.probe=50".split(),
)
def test_hash_tells_runs_with_different_records_apart(override):
    assert config_hash(composed(override)) != config_hash(composed())


def test_hash_of_a_fault_depends_on_its_step_and_parameters_only():
    base = composed("injection=scale")
    again = replace(base.injection, predictions=[{"id": "mine"}])
    assert config_hash(replace(base, injection=again)) == config_hash(base)
    assert config_hash(replace(base, injection_step=7)) != config_hash(base)
    factor = replace(base.injection, factor=51.0)
    assert config_hash(replace(base, injection=factor)) != config_hash(base)
    whole = config_class("scale")(kind="scale", factor=50)
    assert config_hash(replace(base, injection=whole)) == config_hash(base)
