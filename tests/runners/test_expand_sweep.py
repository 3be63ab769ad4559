"""The jobs of a multirun, known before the first one starts."""

from __future__ import annotations

from functools import cache

import pytest

from minigpt.records import InputError
from runners.compose import compose_config, expand_sweep
from runners.config import RunConfig, config_hash


@cache
def composed(*overrides: str) -> RunConfig:
    return compose_config(list(overrides))


def test_a_sweep_of_four_times_two_times_two_has_sixteen_different_runs():
    sweep = ["injection=none,scale,bad_batch,v_corrupt", "clip=0.5,1.0"]
    jobs = expand_sweep([*sweep, "loader=random,stratified"])
    assert len(jobs) == 16
    assert jobs[0] == ["injection=none", "clip=0.5", "loader=random"]
    assert len({config_hash(composed(*job)) for job in jobs}) == 16


def test_equal_points_of_a_grid_have_one_hash():
    jobs = expand_sweep(["clip=0.5,0.50,5e-1"])
    assert len({config_hash(composed(*job)) for job in jobs}) == 1


def test_a_sweep_over_a_glob_takes_every_other_option():
    jobs = expand_sweep(["injection=glob(*,exclude=none)", "seed=range(1,3)"])
    kinds = [composed(*job).injection.kind for job in jobs]
    assert kinds[::2] == ["bad_batch", "rigged_order", "scale", "v_corrupt"]


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["injection=glob(x*)"], "no job"),
        (["seed=range(3,1)"], "no job"),
        (["seed=interval(0,1)"], "seed=interval(0,1)"),
        (["loader=null", "seed=1,2"], "loader: expected one of random, stratified"),
        (["name=a#b,c"], "name: '#'"),
    ],
)
def test_a_sweep_that_cannot_be_expanded_is_refused(overrides, part):
    with pytest.raises(InputError) as caught:
        expand_sweep(overrides)
    assert part in str(caught.value)


def test_a_grid_named_in_an_experiment_file_is_expanded(tmp_path):
    folder = tmp_path / "it's mine"
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "grid.yaml").write_text(
        "# @package _global_\nhydra: {sweeper: {params: {seed: '1,2'}}}\nsteps: 9\n"
    )
    jobs = expand_sweep(["experiment=grid", "clip=1,2"], search_dir=folder)
    runs = [compose_config(job) for job in jobs]
    assert [(run.seed, run.clip) for run in runs] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert {(run.experiment, run.steps) for run in runs} == {("grid", 9)}
