"""``autopsy train`` from the shell's side: exit codes, lines, what is left behind."""

from __future__ import annotations

import errno
import json
import os
import sys

import pytest

from analysis.history import load
from runners import train as module
from runners.console import LastingConsole
from runners.override_errors import CONF_DIR

QUICK = ("steps=2", "tracking=none")


def left_behind(folder) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_run_is_one_line_and_one_folder(autopsy, tmp_path):
    answer = autopsy("train", *QUICK, "name=x")
    assert (answer.code, answer.err) == (0, "")
    loss = load(tmp_path / "experiments" / "x").scalar("train/loss")[-1]
    assert answer.out.splitlines() == [
        f"[1/1] x: step 2/2, loss {loss:.3f}",
        f"experiments/x: finished, 2 steps, final loss {loss:.4f}",
        "experiments/x/dashboard.html",
    ]
    page = (tmp_path / "experiments" / "x" / "dashboard.html").read_text()
    assert "<h1>x</h1>" in page
    assert [path.name for path in (tmp_path / "experiments").iterdir()] == ["x"]


def test_the_runs_of_a_sweep_are_drawn_on_demand(autopsy, tmp_path):
    answer = autopsy("train", "-m", *QUICK, "seed=1,2")
    assert answer.code == 0
    assert "dashboard" not in answer.out
    assert list((tmp_path / "experiments").glob("*/dashboard.html")) == []


def test_a_page_that_cannot_be_written_fails_and_keeps_the_run(
    autopsy, tmp_path, monkeypatch
):
    def full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    monkeypatch.setattr("runners.train.write_dashboard", full)
    answer = autopsy("train", *QUICK, "name=x")
    assert answer.code == 1
    assert "experiments/x: finished, 2 steps" in answer.out
    assert "No space left on device" in answer.err
    assert len(load(tmp_path / "experiments" / "x")) == 2


def test_a_name_that_is_taken_is_told(autopsy):
    for expected in ("x", "x-2", "x-3"):
        answer = autopsy("train", *QUICK, "name=x")
        assert f"experiments/{expected}: finished" in answer.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["stps=5"], "stps: no such key; did you mean steps?"),
        (["steps=five"], "steps: expected a whole number, got 'five'"),
        (["clip=0"], "clip: expected a finite number > 0"),
        (["clip=-1"], "clip: expected a finite number > 0"),
        (["injection=scal"], "did you mean scale?"),
        (
            ["injection=scale", "steps=500"],
            "injection_step: expected 0 to steps - 1 (499)",
        ),
        (["loader.batch_size=241"], "batch_size: expected at most the 240 rows"),
        (
            ["-m", "loader.batch_size=8,241"],
            "batch_size: expected at most the 240 rows",
        ),
        (["injection=rigged_order", "injection.rows=4"], "at most the 3 training rows"),
        (
            ["injection=v_corrupt", "injection.target=x"],
            "injection.target: expected one of",
        ),
        (["injection=bad_batch", "injection.sentence=x"], "a sentence of the corpus"),
        (["seed=1,2"], "add -m"),
        (["-m", "seed="], "seed: expected a whole number"),
        (["-m", "paths.root=a,b"], "paths: expected one choice for a whole sweep"),
        (["-m", "tracking=none,mlflow"], "tracking: expected one choice"),
        (["name=ñandú"], "is not ASCII"),
        (["name='../x'"], "name: expected"),
        (["--foo"], "unrecognized arguments: --foo"),
        (["--config-name", "x"], "--config-name: expected choices from conf/"),
        (["--config-path", "x"], "--config-path: expected choices from conf/"),
        (["--experimental-rerun", "x"], "--experimental-rerun: expected"),
        (["--config-dir", "nope"], "expected a folder, got nope"),
        (["--cfg", "job", "-m"], "expected one of the options, got --multirun, --cfg"),
        (["--cfg", "jo"], "invalid choice: 'jo'"),
        (["--cfg", "job", "stps=5"], "did you mean steps?"),
        (["--info", "config", "stps=5"], "did you mean steps?"),
        (["--resolve"], "--resolve: expected together with --cfg job"),
        (["tracking.uri=./mlruns"], "migrate-filestore"),
        (["paths.root=what?"], "without ? and % in its path"),
        (["paths.root=50%", "-m", "seed=1,2"], "without ? and % in its path"),
    ],
)
def test_a_mistake_is_one_line_exit_2_and_leaves_nothing(
    autopsy, tmp_path, arguments, part
):
    answer = autopsy("train", *arguments)
    assert answer.code == 2
    assert answer.line.startswith("autopsy: ")
    assert part in answer.line
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("below", ["", "/deeper"])
@pytest.mark.parametrize("more", [["tracking=none"], [], ["-m", "seed=1,2"]])
def test_a_root_that_is_a_file_is_a_mistake(autopsy, tmp_path, below, more):
    (tmp_path / "file").write_text("mine")
    answer = autopsy("train", "steps=2", f"paths.root=file{below}", *more)
    assert answer.code == 2
    assert f"paths.root file{below}: expected a folder, found a file" in answer.line
    assert left_behind(tmp_path) == ["file"]


def test_a_root_that_cannot_be_written_is_one_line_and_exit_1(autopsy, tmp_path):
    """On a read-only disk; a link into the kernel's own files is as good as one."""
    (tmp_path / "experiments").symlink_to("/proc/self")
    answer = autopsy("train", *QUICK, "name=x")
    assert answer.code == 1
    assert answer.line.startswith(
        "autopsy: experiments/x: expected to read and write it"
    )


@pytest.mark.parametrize("name", ["my runs", "ñandú", "it's", "[x]", "a#b", "=", "{a}"])
def test_a_root_of_any_name_will_do(autopsy, tmp_path, name):
    quoted = name.replace("'", "\\'")
    answer = autopsy("train", *QUICK, "-m", "name=x", f"paths.root='{quoted}'")
    assert (answer.code, answer.err) == (0, "")
    assert f"{name}/x: finished" in answer.out
    assert {path.name for path in (tmp_path / name).iterdir()} == {"x", ".sweeps"}


def test_the_root_of_the_environment_counts_as_everywhere(
    autopsy, tmp_path, monkeypatch
):
    monkeypatch.setenv("AUTOPSY_ROOT", "there it's")
    assert autopsy("train", *QUICK, "name=x").code == 0
    assert (tmp_path / "there it's" / "x").is_dir()
    assert "final loss" in autopsy("show", "x").out
    assert autopsy("train", *QUICK, "paths.root=here", "name=x").code == 0
    assert (tmp_path / "here" / "x").is_dir()


def test_options_may_stand_anywhere(autopsy):
    for arguments in (["-m", "seed=1,2"], ["seed=1,2", "-m"]):
        answer = autopsy("train", "steps=1", *arguments, "tracking=none")
        assert "2 of 2 runs finished" in answer.out


def test_the_config_is_printed_and_nothing_trained(autopsy, tmp_path):
    answer = autopsy("train", "--cfg", "job", "seed=7")
    assert answer.code == 0
    assert "\nseed: 7\n" in answer.out
    assert left_behind(tmp_path) == []


def test_experiments_of_ones_own_come_from_a_folder(autopsy, tmp_path):
    folder = tmp_path / "my conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# @package _global_\nname: mine\nsteps: 3\n")
    options = ("--config-dir", "my conf")
    answer = autopsy("train", *options, "experiment=mine", "tracking=none")
    assert "experiments/mine: finished, 3 steps" in answer.out


def test_a_grid_in_a_file_wants_the_option(autopsy, tmp_path):
    folder = tmp_path / "c" / "experiment"
    folder.mkdir(parents=True)
    grid = "hydra:\n  mode: MULTIRUN\n  sweeper: {params: {seed: '1,2'}}\n"
    (folder / "grid.yaml").write_text(f"# @package _global_\nsteps: 2\n{grid}")
    choices = ("--config-dir", "c", "experiment=grid", "tracking=none")
    answer = autopsy("train", *choices)
    assert answer.code == 2
    assert "a grid named in a file is run with -m" in answer.line
    assert "2 of 2 runs finished" in autopsy("train", "-m", *choices).out


def test_the_shells_command_leaves_python_as_it_was(autopsy):
    before = sys.argv, dict(os.environ), os.getcwd()
    autopsy("train", *QUICK)
    assert (dict(os.environ), os.getcwd()) == before[1:]
    assert "HYDRA_FULL_ERROR" not in os.environ


# -- runs that fail --------------------------------------------------------------------


class _Odd(Exception):
    """An error of the code."""


@pytest.fixture
def failing(monkeypatch):
    """Makes the runs of these seeds end with an error at their second step."""
    real = module.execute

    def arrange(errors):
        def execute(config, tracker, on_step, *rest):
            def step(name, number, *more):
                on_step(name, number, *more)
                if number == 1 and config.seed in errors:
                    raise errors[config.seed]

            return real(config, tracker, step, *rest)

        monkeypatch.setattr(module, "execute", execute)

    return arrange


def test_a_bug_of_ours_shows_its_trace_and_closes_the_run(autopsy, tmp_path, failing):
    failing({42: _Odd("of ours")})
    with pytest.raises(_Odd):
        autopsy("train", "steps=3", "tracking=none", "name=x")
    manifest = json.loads((tmp_path / "experiments/x/manifest.json").read_text())
    assert (manifest["status"], manifest["error"]) == ("failed", "_Odd: of ours")
    assert len(load(tmp_path / "experiments" / "x")) == 2


def test_a_disk_that_fails_is_one_line_more_and_exit_1(autopsy, failing):
    failing({42: OSError(28, "No space left on device")})
    answer = autopsy("train", "steps=3", "tracking=none", "name=x")
    assert answer.code == 1
    assert "experiments/x: failed, 2 steps, final loss" in answer.out
    assert answer.err == (
        "autopsy: experiments/x: expected to read and write it, "
        "found: No space left on device\n"
    )


@pytest.mark.parametrize("code", [0, None, 3])
def test_a_run_that_exits_has_not_finished(autopsy, failing, code):
    failing({42: SystemExit(code)})
    with pytest.raises(RuntimeError, match=rf"sys\.exit\({code}\)"):
        autopsy("train", "steps=3", "tracking=none")


def sweep_file(tmp_path) -> dict:
    (path,) = tmp_path.glob("experiments/.sweeps/*/sweep.json")
    return json.loads(path.read_text())


SWEEP = ("-m", "steps=3", "tracking=none", "seed=1,2,3,4")


def test_jobs_that_fail_stop_no_other(autopsy, tmp_path, failing):
    failing({1: _Odd("first"), 3: SystemExit(0)})
    answer = autopsy("train", *SWEEP)
    assert (answer.code, answer.err) == (1, "")
    assert "2 of 4 runs finished" in answer.out
    assert "  none-clip1.0-random-s1-n3: failed: _Odd: first\n" in answer.out
    assert "  none-clip1.0-random-s3-n3: failed: SystemExit: 0\n" in answer.out
    jobs = sweep_file(tmp_path)["jobs"]
    assert [job["status"] for job in jobs] == ["failed", "finished"] * 2
    assert all((tmp_path / "experiments" / job["folder"]).is_dir() for job in jobs)


def test_each_failed_job_has_its_trace_in_its_own_file(autopsy, tmp_path, failing):
    failing({1: _Odd("first"), 3: _Odd("third")})
    autopsy("train", *SWEEP)
    logs = sorted(tmp_path.glob("experiments/.sweeps/*/*.log"))
    assert [path.name[:4] for path in logs] == ["0000", "0002"]
    for path, word in zip(logs, ("first", "third"), strict=True):
        text = path.read_text()
        assert text.startswith("Traceback")
        assert text.rstrip().endswith(f"_Odd: {word}")


def test_a_signal_in_a_job_ends_the_sweep(autopsy, tmp_path, failing):
    failing({2: KeyboardInterrupt()})
    answer = autopsy("train", *SWEEP)
    assert answer.code == 130
    assert "1 of 4 runs finished" in answer.out
    states = [job["status"] for job in sweep_file(tmp_path)["jobs"]]
    assert states == ["finished", "killed", "not started", "not started"]
    killed = tmp_path / "experiments" / "none-clip1.0-random-s2-n3"
    assert json.loads((killed / "manifest.json").read_text())["status"] == "killed"


def test_every_run_of_a_sweep_names_the_sweep(autopsy, tmp_path):
    autopsy("train", "-m", "steps=1", "tracking=none", "seed=1,2")
    sweep = sweep_file(tmp_path)
    for path in tmp_path.glob("experiments/*/manifest.json"):
        assert json.loads(path.read_text())["sweep"] == sweep["id"]
    assert sweep["title"] == "steps=1 tracking=none seed=1,2"
    answer = autopsy("show", sweep["id"])
    assert answer.out.count("status finished") == 2


def test_a_sweep_writes_no_password(autopsy, tmp_path):
    uri = "+tracking.uri=postgresql://me:s3cret@host/db"
    autopsy("train", "-m", "steps=1", "tracking=none", "seed=1,2", uri)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cret" in path.read_bytes()]
    assert "postgresql://***@host/db" in sweep_file(tmp_path)["title"]


def test_two_sweeps_in_one_second_are_two(autopsy, tmp_path):
    for _ in range(2):
        autopsy("train", "-m", "steps=1", "tracking=none", "seed=1,2")
    assert len(list((tmp_path / "experiments" / ".sweeps").iterdir())) == 2


def test_a_sweep_without_room_for_its_notes_goes_on(autopsy, tmp_path, monkeypatch):
    made = []

    def no_room(path, data):
        made.append(path)
        if len(made) > 1:
            raise OSError(28, "No space left on device")
        path.write_bytes(data)

    monkeypatch.setattr("runners.sweep.write_atomically", no_room)
    answer = autopsy("train", "-m", "steps=1", "tracking=none", "seed=1,2")
    assert "2 of 2 runs finished" in answer.out
    assert "sweep.json: No space left on device" in answer.out


# -- output ----------------------------------------------------------------------------


def test_a_reader_that_goes_away_ends_no_training(tmp_path, monkeypatch):
    """``autopsy train | head -1``: the console falls silent and nothing is raised."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        console = LastingConsole(width=80)
        console.print("one")
        console.print("two")
        assert console.quiet


def test_no_output_goes_into_conf():
    assert not [
        path
        for path in CONF_DIR.rglob("*")
        if path.suffix != ".yaml" and path.is_file()
    ]
