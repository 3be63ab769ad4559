"""``autopsy lab``: its plan holds together, and a small plan is carried out in full."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from analysis.ema import ema
from analysis.history import load
from analysis.predictions import QUANTITIES, RISE_STEPS
from minigpt.records import GRAD_NORM_PRECLIP, TRAIN_LOSS, InputError
from runners import dashboard, lab
from runners.compose import compose_config
from runners.config import config_hash
from runners.console import LastingConsole
from runners.folders import read_link
from runners.override_errors import CONF_DIR
from runners.spec import read_spec
from tests.analysis.dashboard.runs import page_json
from tests.runners.stored import expected_steps, mlflow_runs, shipped_steps

# -- the plan of conf/lab.yaml ---------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> dict:
    return yaml.safe_load((CONF_DIR / "lab.yaml").read_text())


def hashes(runs) -> set[str]:
    return {config_hash(compose_config(overrides)) for overrides in runs}


def test_the_plan_trains_eight_different_runs(plan):
    assert len(hashes(plan["runs"])) == len(plan["runs"]) == 8


def test_all_that_is_reported_on_is_trained(plan):
    spec, predictions = read_spec(plan["verification"]), plan["predictions"]
    wanted = [run for runs in spec.roles.values() for run in runs]
    wanted += [predictions["twin"], predictions["reference"], *predictions["runs"]]
    wanted += plan["published_ema"]["runs"]
    assert hashes(wanted) <= hashes(plan["runs"])


def test_every_window_of_the_plan_ends_within_its_runs(plan):
    spec = read_spec(plan["verification"])
    shortest = min(
        compose_config(run).steps for runs in spec.roles.values() for run in runs
    )
    assert all((check.last or 0) < shortest for check in spec.checks)
    assert plan["published_ema"]["step"] < shortest
    for run in plan["predictions"]["runs"]:
        config = compose_config(run)
        assert config.injection_step + RISE_STEPS < config.steps
        assert config.injection.predictions
        for prediction in config.injection.predictions:
            assert prediction["quantity"] in QUANTITIES


def test_only_finished_runs_of_the_root_are_used_again(tmp_path, finished):
    good = shutil.copytree(finished.folder, tmp_path / "good")
    manifest = json.loads((good / "manifest.json").read_text())
    others = {
        "killed": manifest | {"status": "killed"},
        "open": manifest | {"record": None},
        "a-mixed": manifest
        | {"resumes": [{"at_step": 5, "differs": {"first_step": 0}}]},
        "foreign": {"status": "finished"},
        "list": [],
    }
    for name, content in others.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps(content))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    key = manifest["config_hash"], manifest["code_hash"]
    assert lab._finished(tmp_path) == {key: good}


def test_of_equal_runs_that_of_the_experiments_name_is_used(tmp_path, finished):
    for name in ("a-twin", "lab-run", "zzz-twin"):
        copy = shutil.copytree(finished.folder, tmp_path / name)
        path = copy / "manifest.json"
        manifest = json.loads(path.read_text()) | {"experiment": "lab-run"}
        path.write_text(json.dumps(manifest))
    (used,) = lab._finished(tmp_path).values()
    assert used.name == "lab-run"


class Drawn:
    """The lab's drawing of three run folders, the first of which is the baseline."""

    def __init__(self, root, finished, monkeypatch):
        names = ("base", "fault", "other")
        self.folders = [shutil.copytree(finished.folder, root / one) for one in names]
        self.attached = []
        known = dict(enumerate(self.folders))
        monkeypatch.setattr(lab, "_identity", lambda config: config)
        monkeypatch.setattr(lab, "_finished", lambda root: known)
        monkeypatch.setattr(dashboard, "attach", self._attach)

    def _attach(self, path, run_id, place):
        if run_id == "0" * 32:
            raise InputError("the store is away")
        self.attached.append((path, run_id))

    def __call__(self, root):
        console = LastingConsole(width=200, record=True, file=io.StringIO())
        done = lab._draw(range(3), root, console)
        return done, console.export_text().splitlines()

    def pages(self):
        return [page_json((one / "dashboard.html").read_text()) for one in self.folders]


@pytest.fixture
def drawn(tmp_path, finished, monkeypatch):
    return Drawn(tmp_path, finished, monkeypatch)


def link(folder, run_id):
    (folder / "mlflow.json").write_text(json.dumps({"run_id": run_id}))


def test_every_run_is_drawn_above_the_baseline(drawn, tmp_path):
    assert drawn(tmp_path) == (
        True,
        [str(folder / "dashboard.html") for folder in drawn.folders],
    )
    assert [page["baseline"] for page in drawn.pages()] == [None, "healthy", "healthy"]
    assert drawn.attached == []  # none of them is tracked


def test_tracked_runs_get_their_pages_in_mlflow(drawn, tmp_path):
    for number, folder in enumerate(drawn.folders):
        link(folder, str(number + 1) * 32)
    done, _ = drawn(tmp_path)
    assert done
    assert drawn.attached == [
        (folder / "dashboard.html", str(number + 1) * 32)
        for number, folder in enumerate(drawn.folders)
    ]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_page_that_is_not_attached_does_not_hold_up_the_others(
    drawn, tmp_path, damaged
):
    """The tables of the lab were lost with it."""
    for folder in drawn.folders:
        link(folder, "1" * 32)
    link(drawn.folders[1], "x" if damaged else "0" * 32)
    done, lines = drawn(tmp_path)
    assert not done
    assert len(drawn.attached) == 2
    assert len(drawn.pages()) == 3
    found = "expected a JSON object" if damaged else "the store is away"
    assert lines[2].startswith("not attached to its run in MLflow: ")
    assert found in lines[2]


@pytest.mark.parametrize("attached", [True, False])
def test_the_tables_come_also_where_a_page_was_not_attached(
    attached, tmp_path, monkeypatch
):
    said = []
    monkeypatch.setattr(lab, "_train", lambda *_: True)
    monkeypatch.setattr(lab, "_draw", lambda *_: attached)
    monkeypatch.setattr(lab, "compute", lambda *_: None)
    monkeypatch.setattr(lab, "show", lambda *_: said.append("verification"))
    monkeypatch.setattr(lab, "_predictions", lambda *_: said.append("predictions"))
    monkeypatch.setattr(lab, "_published_ema", lambda *_: said.append("ema") or "")
    console = LastingConsole(file=io.StringIO())
    assert lab.lab(tmp_path, console) == (0 if attached else 1)
    assert said == ["verification", "predictions", "ema"]


# -- a small plan, carried out ---------------------------------------------------------

K = 40
BASE = ["name=base", "steps=80"]
FAULT = ["name=fault", "steps=80", "injection=scale", f"injection_step={K}"]
OTHER = ["name=other", "steps=80", "seed=1"]
PLAN = {
    "runs": [BASE, FAULT, OTHER],
    "predictions": {"twin": BASE, "reference": FAULT, "runs": [FAULT]},
    "published_ema": {"step": 30, "value": 2.31, "runs": [BASE, OTHER]},
}
SPEC = {
    "name": "small",
    "verifies": "Nothing much.",
    "roles": {"fixed": [FAULT], "healthy": [OTHER], "baseline": [BASE]},
    "checks": [
        {
            "code": "S1",
            "claim": "the loss is above all reason",
            "kind": "max_in_window",
            "column": TRAIN_LOSS,
            "window": [10, 20],
            "limit": 0.001,
        },
        {
            "code": "S2",
            "claim": "close to the baseline",
            "kind": "ema_gap_to_baseline",
            "column": TRAIN_LOSS,
            "window": [0, 79],
            "limit": 5.0,
        },
    ],
}
_LAB = """
import sys
from pathlib import Path
from runners import cli, lab
lab.CONF_DIR = Path(sys.argv.pop(1))
cli.main()
"""


class Lab:
    """The command with a small plan, in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder, self.root = folder, folder / "my runs"
        (folder / "conf").mkdir()
        (folder / "spec.yaml").write_text(yaml.safe_dump(SPEC, sort_keys=False))
        plan = PLAN | {"verification": str(folder / "spec.yaml")}
        (folder / "conf" / "lab.yaml").write_text(yaml.safe_dump(plan))

    def __call__(self) -> str:
        command = [sys.executable, "-c", _LAB, str(self.folder / "conf")]
        command += ["lab", "--root", "my runs"]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=200
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def names(self) -> set[str]:
        return {path.parent.name for path in self.root.glob("*/manifest.json")}


@pytest.fixture(scope="module")
def first(empty_store, tmp_path_factory) -> tuple[Lab, str]:
    """The command's first run and what it said."""
    command = Lab(tmp_path_factory.mktemp("lab"))
    command.root.mkdir()
    shutil.copy(empty_store, command.root / "mlflow.db")
    return command, command()


def reports(out: str) -> str:
    """The tables, without what was trained before."""
    return out[out.index("small: Nothing much.") :]


@pytest.mark.slow
def test_the_runs_are_trained_and_in_mlflow(first):
    command, out = first
    assert command.names() == {"base", "fault", "other"}
    for name in command.names():
        assert f"my runs/{name}: finished, 80 steps" in out
        assert shipped_steps(command.root, name) == expected_steps(command.root / name)
    assert set(mlflow_runs(command.root).values()) == {"FINISHED"}


@pytest.mark.slow
def test_the_runs_are_drawn_and_their_pages_are_in_mlflow(first):
    command, out = first
    for name in command.names():
        page = command.root / name / "dashboard.html"
        assert f"my runs/{name}/dashboard.html" in out.splitlines()
        run_id = read_link(page.parent)["run_id"]
        (stored,) = command.root.glob(f"mlartifacts/{run_id}/artifacts/dashboard.html")
        assert stored.read_bytes() == page.read_bytes()
        described = page_json(page.read_text())
        assert described["title"] == name
        assert described["baseline"] == (None if name == "base" else "base")


@pytest.mark.slow
def test_a_failed_check_is_reported_and_the_command_succeeds(first):
    table, _, rest = reports(first[1]).partition("The lab's predictions")
    assert all(
        word in table for word in ("fixed", "healthy", "S1 the loss", "S2 close")
    )
    assert table.count(" failed ") == table.count(" passed ") == 2
    loss = load(first[0].root / "fault").scalar(TRAIN_LOSS)[10:21]
    assert f"failed {loss.max():.4f} (step {10 + loss.argmax()})" in table
    assert rest


def rows_of(table: str) -> list[list[str]]:
    """The cells of a drawn table, the lines of each cell joined."""
    rows, cells = [], []
    for line in table.splitlines():
        if line.startswith("│"):
            parts = [part.strip() for part in line.strip("│").split("│")]
            cells = [" ".join(pair).strip() for pair in zip(cells, parts, strict=True)]
        elif cells or line.startswith("┡"):
            rows += [cells] if any(cells) else []
            cells = [""] * (line.count("┼") + line.count("╇") + 1)
    return rows


@pytest.mark.slow
def test_predictions_stand_beside_what_was_measured(first):
    _, _, out = reports(first[1]).partition("The lab's predictions")
    predictions = compose_config(FAULT).injection.predictions
    rows = {claim: rest for _, claim, *rest in rows_of(out)}
    assert list(rows) == [one["claim"] for one in predictions]
    claims = {one["quantity"]: one["claim"] for one in predictions}
    units = {one["quantity"]: one["unit"] for one in predictions}

    norm = load(first[0].root / "fault").scalar(GRAD_NORM_PRECLIP)
    ratio = norm[K] / np.median(norm[:K])
    assert 25 < ratio < 100
    expected = f"25 to 100 {units['preclip_ratio_at_step']}"
    measured = rows[claims["preclip_ratio_at_step"]]
    assert measured == [expected, f"{ratio:.4g}", "confirmed"]
    measured = rows[claims["postclip_at_step"]]
    assert measured == ["0.99 to 1.01 norm", "1", "confirmed"]
    expected, note, answer = rows[claims["recovery_steps"]]
    assert (expected, answer) == ("20 to 40 steps", "not confirmed")
    assert note.startswith("no spike to recover from")


@pytest.mark.slow
def test_the_published_average_stands_beside_the_healthy_runs(first):
    command, out = first
    measured = [
        f"{name} {ema(load(command.root / name).scalar(TRAIN_LOSS)[:31])[-1]:.3f}"
        for name in ("base", "other")
    ]
    *_, last = (line for line in out.splitlines() if not line.endswith(".html"))
    assert last == (
        "EMA-50 of the loss at step 30: published 2.31; measured in the healthy runs: "
        + ", ".join(measured)
    )


@pytest.mark.slow
def test_a_second_time_everything_is_used_again(first):
    command, out = first
    manifests = {name: (command.root / name / "manifest.json").read_bytes()
                 for name in command.names()}  # fmt: skip
    again = command()
    assert again.count("reused (finished, same config and code)") == 3
    assert "finished, 80 steps" not in again
    assert reports(again) == reports(out)
    assert manifests == {
        name: (command.root / name / "manifest.json").read_bytes()
        for name in command.names()
    }


@pytest.mark.slow
def test_what_mlflow_has_lost_or_never_got_is_shipped_again(first, empty_store):
    """The store was removed; so was one run's link, as after a killed shipper."""
    command, out = first
    shutil.copy(empty_store, command.root / "mlflow.db")
    (command.root / "other" / "mlflow.json").unlink()
    again = command()
    assert reports(again) == reports(out)
    assert command.names() == {"base", "fault", "other"}
    assert mlflow_runs(command.root).keys() == command.names()
    for name in command.names():
        assert shipped_steps(command.root, name) == expected_steps(command.root / name)
        assert read_link(command.root / name)["complete"]


@pytest.mark.slow
def test_a_run_of_other_code_is_trained_anew(first):
    command, _ = first
    path = command.root / "base" / "manifest.json"
    before = path.read_bytes()
    path.write_text(json.dumps(json.loads(before) | {"code_hash": "0" * 64}))
    try:
        out = command()
    finally:
        path.write_bytes(before)
    assert "my runs/base-2: finished, 80 steps" in out
    assert out.count("reused") == 2
