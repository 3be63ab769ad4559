"""What a store and a run folder say, read without MLflow."""

from __future__ import annotations

import sqlite3
from collections import Counter

from analysis.ema import ema
from analysis.history import RunHistory, load
from analysis.spikes import ship
from analysis.summary import summarise
from minigpt.records import GRAD_NORM_PRECLIP, TIME_WALL, TRAIN_LOSS, VAL_LOSS
from runners.curves import CADENCE_CURVES, CURVES, LOSS_EMA


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


def columns_bits(folder) -> dict[str, bytes]:
    """Column -> its bytes, wall clock aside."""
    data = load(folder).data
    found = {name: column.tobytes() for name, column in data.flat.items()}
    for name, (values, offsets) in data.arrays.items():
        found[name] = values.tobytes() + offsets.tobytes()
    for name, mask in data.measured.items():
        found[f"measured {name}"] = mask.tobytes()
    del found[TIME_WALL]
    return found


Points = Counter[tuple[str, int, int, str]]  # key, step, milliseconds, value


def mlflow_points(root, name) -> Points:
    """Every point that the store has of a run, as often as it has it."""
    query = (
        "SELECT key, step, timestamp, value, is_nan FROM metrics "
        "JOIN runs USING (run_uuid) WHERE name = ?"
    )
    with sqlite3.connect(root / "mlflow.db") as database:
        rows = database.execute(query, (name,)).fetchall()
    return Counter(
        (key, step, time, "nan" if is_nan else repr(float(value)))
        for key, step, time, value, is_nan in rows
    )


def expected_points(folder) -> Points:
    """The same by the record alone: what the shipping rule selects of it, once each."""
    history = load(folder)
    if not len(history):
        return Counter()
    times = (history.scalar(TIME_WALL) * 1000).astype(int).tolist()
    found = []
    for step in expected_steps(folder):
        found += [(*one, times[step]) for one in _values(history, step)]
    if history.facts.status == "finished":
        figures = summarise(history).figures.items()
        found += [(key, f.step, f.value, times[f.step]) for key, f in figures]
    return Counter((key, step, time, repr(value)) for key, step, value, time in found)


def _values(history: RunHistory, step: int) -> list[tuple[str, int, float]]:
    smooth = ema(history.scalar(TRAIN_LOSS)[: step + 1])
    found = [(name, step, float(history.scalar(name)[step])) for name in CURVES]
    found.append((LOSS_EMA, step, float(smooth[step])))
    return found + [
        (name, step, float(history.scalar(name)[step]))
        for name in CADENCE_CURVES
        if history.measured(name)[step]
    ]
