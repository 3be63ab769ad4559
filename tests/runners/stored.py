"""What a store and a run folder say, read without MLflow."""

from __future__ import annotations

import sqlite3

from analysis.history import load
from analysis.spikes import ship
from minigpt.records import GRAD_NORM_PRECLIP, TRAIN_LOSS, VAL_LOSS


def mlflow_runs(root) -> dict[str, str]:
    """Name -> status, from the store's file."""
    with sqlite3.connect(root / "mlflow.db") as database:
        return dict(database.execute("SELECT name, status FROM runs").fetchall())


def shipped_steps(root, name, key=TRAIN_LOSS) -> list[int]:
    query = (
        "SELECT step FROM metrics JOIN runs USING (run_uuid) WHERE name = ? AND key = ?"
    )
    with sqlite3.connect(root / "mlflow.db") as database:
        return sorted(step for (step,) in database.execute(query, (name, key)))


def expected_steps(folder) -> list[int]:
    """The steps that the shipping rule selects from the record of a folder."""
    history = load(folder)
    loss, norm = (history.scalar(name) for name in (TRAIN_LOSS, GRAD_NORM_PRECLIP))
    finished = history.facts.status == "finished"
    return ship(loss, norm, history.measured(VAL_LOSS), finished=finished).tolist()
