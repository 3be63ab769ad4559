"""Eight processes that meet on one SQLite store, which is not there yet."""

from __future__ import annotations

import pytest

from runners.curves import CURVES
from tests.runners.stored import expected_steps, mlflow_runs, shipped_steps
from tests.runners.together import experiments_made_at_once, train_at_once

pytestmark = pytest.mark.slow

MANY = 8


def test_eight_runs_make_a_missing_file_and_lose_no_point(tmp_path):
    root = tmp_path / "experiments"
    answers = train_at_once(MANY, tmp_path, f"sqlite:///{root}/mlflow.db")
    assert [answer.err for answer in answers] == [""] * MANY
    names = [f"r{number}" for number in range(MANY)]
    assert mlflow_runs(root) == dict.fromkeys(names, "FINISHED")
    for name in names:
        steps = expected_steps(root / name)
        assert steps
        for key in CURVES:
            assert shipped_steps(root, name, key) == steps, (name, key)
    assert "locked" not in (root / ".shipper.log").read_text()


def test_eight_that_make_one_experiment_have_one_id(tmp_path):
    ids, _ = experiments_made_at_once(f"sqlite:///{tmp_path}/mlflow.db", MANY)
    assert ids[0].isdigit()
    assert ids == ids[:1] * MANY
