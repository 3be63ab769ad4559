"""Every file of conf/: it composes, says the same as the code, and writes nothing."""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import cache
from pathlib import Path

import pytest
import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from minigpt.injections import INJECTIONS
from runners.compose import compose_config, expand_sweep
from runners.config import RunConfig
from runners.override_errors import CONF_DIR, group_options
from runners.schema import from_hydra

QUANTITIES = {
    "loss_z_at_step",
    "preclip_ratio_at_step",
    "postclip_at_step",
    "recovery_steps",
    "loss_excess_vs_scale",
    "preclip_ratio_vs_scale",
    "ema_rise_30",
}
EXPERIMENTS = list(group_options()["experiment"])
OPTIONS = [
    (group, option)
    for group, options in group_options().items()
    for option in options
    if group != "experiment"
]


@cache
def composed(*overrides: str) -> RunConfig:
    return compose_config(list(overrides))


def file_of(group: str, option: str) -> dict:
    return yaml.safe_load((CONF_DIR / group / f"{option}.yaml").read_text("utf-8"))


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_option_composes_and_repeats_the_defaults_of_its_class(group, option):
    part = getattr(composed(f"{group}={option}"), group)
    written = file_of(group, option)
    identity = {"kind", "predictions"} & written.keys()
    assert type(part)(**{key: written[key] for key in identity}) == part
    if (group, option) not in (("tracking", "none"), ("tracking", "offline")):
        assert written.keys() >= {field.name for field in fields(part)}


def test_the_defaults_of_conf_are_those_of_the_code():
    config = composed()
    assert config.injection.kind == "none"
    assert config == RunConfig(injection=config.injection)


def test_every_fault_has_a_file_and_every_file_a_fault():
    files = {option for group, option in OPTIONS if group == "injection"}
    assert files == INJECTIONS.keys()
    assert all(file_of("injection", name)["kind"] == name for name in files)


@pytest.mark.parametrize("kind", sorted(INJECTIONS))
def test_predictions_are_complete_and_of_known_quantities(kind):
    predictions = composed(f"injection={kind}").injection.predictions
    assert predictions
    for one in predictions:
        assert one.keys() == {"id", "claim", "quantity", "low", "high", "unit"}
        assert one["id"].startswith(kind.replace("_", "-"))
        assert one["claim"].endswith(".")
        assert one["quantity"] in QUANTITIES
        bounds = [one[key] for key in ("low", "high") if one[key] is not None]
        assert bounds == sorted(bounds)
        assert bounds
        assert all(isinstance(bound, float) for bound in bounds)


def test_prediction_ids_are_unique():
    every = [
        one["id"]
        for kind in INJECTIONS
        for one in file_of("injection", kind)["predictions"]
    ]
    assert len(every) == len(set(every))


@pytest.mark.parametrize("stem", EXPERIMENTS)
def test_experiment_file_names_itself_and_its_command(stem):
    text = (CONF_DIR / "experiment" / f"{stem}.yaml").read_text("utf-8")
    assert text.startswith("# @package _global_\n")
    assert "#   autopsy train" in text
    assert f" experiment={stem}" in text
    config = composed(f"experiment={stem}")
    assert config.experiment == stem
    assert config.name.startswith(stem)


@pytest.mark.parametrize("stem", EXPERIMENTS)
def test_experiment_file_holds_only_differences(stem):
    written = file_of("experiment", stem)
    default = OmegaConf.create(asdict(composed()))
    for entry in written.pop("defaults", []):
        ((group, option),) = entry.items()
        group = group.removeprefix("override /")
        usual = yaml.safe_load((CONF_DIR / "config.yaml").read_text("utf-8"))
        assert {group: option} not in usual["defaults"]
        assert (group, option) in OPTIONS
    for key, value in written.items():
        assert OmegaConf.select(default, key, throw_on_missing=True) != value


SETTINGS = {
    "18-baseline": ("none", 500, 1.0, "random", 2000),
    "18-replicate": ("none", 500, 1.0, "random", 501),
    "19-injection-A": ("scale", 500, 1.0, "random", 2000),
    "19-injection-B": ("bad_batch", 500, 1.0, "random", 2000),
    "19-injection-C": ("v_corrupt", 500, 1.0, "random", 2000),
    "19-spike-001": ("rigged_order", 312, 1.0, "random", 2000),
    "19-spike-001-fixed": ("rigged_order", 312, 0.5, "stratified", 2000),
}


@pytest.mark.parametrize("stem", EXPERIMENTS)
def test_experiment_is_what_the_pages_ask_for(stem):
    run = composed(f"experiment={stem}")
    settings = (run.injection.kind, run.injection_step, run.clip, run.loader.kind)
    assert (*settings, run.steps) == SETTINGS[stem]
    assert (run.seed, run.data_seed) == (42, 42)


def test_replicates_are_named_by_the_seed_of_the_command_line():
    jobs = expand_sweep(["experiment=18-replicate", "seed=1,2"])
    names = [compose_config(job).name for job in jobs]
    assert names == ["18-replicate-seed1", "18-replicate-seed2"]


def test_the_command_line_wins_over_the_experiment_file():
    run = composed("experiment=19-spike-001-fixed", "loader=random", "clip=null")
    assert (run.loader.kind, run.clip) == ("random", None)
    assert run.experiment == "19-spike-001-fixed"


def test_conf_holds_yaml_only():
    assert {path.suffix for path in CONF_DIR.rglob("*") if path.is_file()} == {".yaml"}


# -- under hydra.main's own machinery ------------------------------------------------


def files_below(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
    )


@pytest.fixture
def hydra(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with initialize_config_dir(str(CONF_DIR), "autopsy", "1.3"):
        yield GlobalHydra.instance().hydra
    HydraConfig.instance().cfg = None


def test_a_single_run_under_hydra_writes_nothing(hydra, tmp_path):
    job = hydra.run("config", from_hydra, ["experiment=19-injection-A"])
    assert job.return_value == composed("experiment=19-injection-A")
    assert list(tmp_path.iterdir()) == []


def test_a_multirun_under_hydra_writes_below_the_root_only(hydra, tmp_path):
    overrides = ["experiment=19-spike-001,19-injection-A", "clip=0.5,null"]
    overrides += ["paths.root=kept here"]
    (jobs,) = hydra.multirun("config", from_hydra, overrides)
    assert [job.overrides for job in jobs] == expand_sweep(overrides)
    assert [job.return_value for job in jobs] == [
        compose_config(job) for job in expand_sweep(overrides)
    ]
    (written,) = files_below(tmp_path)
    assert written.startswith("kept here/.sweeps/")
    assert written.endswith("/multirun.yaml")


def test_composing_inside_a_job_leaves_the_job_its_own_choices(hydra):
    def task(cfg):
        inner = compose_config(["experiment=18-baseline"])
        return inner.experiment, from_hydra(cfg).experiment

    job = hydra.run("config", task, ["experiment=19-injection-B"])
    assert job.return_value == ("18-baseline", "19-injection-B")


def test_a_run_of_no_experiment_has_none(hydra):
    assert hydra.run("config", from_hydra, ["seed=3"]).return_value.experiment is None
    assert composed().experiment is None
