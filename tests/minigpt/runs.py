"""Plans, recorded runs and their bit by bit comparison, for the tests of minigpt."""

from dataclasses import dataclass

import numpy as np

from minigpt.injections import config_class
from minigpt.loaders import LoaderConfig
from minigpt.model import ModelConfig
from minigpt.observer import CadenceConfig
from minigpt.optimizer import AdamWConfig
from minigpt.records import TIME_WALL, RecordLayout, StepRecord
from minigpt.schedule import ScheduleConfig
from minigpt.training import Session, TrainingPlan

NEVER = CadenceConfig(validation=0, spectral=0, probe=0)


def fault(kind, **parameters):
    return config_class(kind)(kind=kind, **parameters)


def make_plan(**changes):
    """The default plan without cadence columns, 60 steps; ``changes`` replace."""
    parts = {
        "model": ModelConfig(),
        "optimizer": AdamWConfig(),
        "schedule": ScheduleConfig(),
        "loader": LoaderConfig(),
        "injection": fault("none"),
        "cadence": NEVER,
        "seed": 42,
        "data_seed": 42,
        "injection_step": 0,
        "clip": 1.0,
        "steps": 60,
    }
    return TrainingPlan(**parts | changes)


@dataclass
class Run:
    """All records of a run."""

    layout: RecordLayout
    records: list[StepRecord]

    def __len__(self):
        return len(self.records)

    def column(self, name):
        """One scalar, tensor or integer column: an array over the steps."""
        for part in ("scalars", "tensors", "integers"):
            names = getattr(self.layout, part)
            if name in names:
                at = names.index(name)
                return np.array([getattr(r, part)[at] for r in self.records])
        raise KeyError(name)

    def occasional(self, name):
        """Step -> value of an occasional column."""
        return {
            r.step: r.occasional[name] for r in self.records if name in r.occasional
        }


def record(session, until=None):
    """The records of a session from where it stands."""
    return Run(session.layout, list(session.records(until)))


def train(plan):
    """Record a whole run."""
    session = Session(plan)
    try:
        return record(session)
    finally:
        session.close()


def differing_columns(layout, one, other):
    """Names of the columns that are not bit-equal, the wall time left out."""
    found = []
    for part in ("scalars", "tensors", "integers"):
        left, right = getattr(one, part), getattr(other, part)
        assert left.dtype == right.dtype
        width = left.dtype.itemsize
        bytes_left = left.view(np.uint8).reshape(-1, width)
        same = (bytes_left == right.view(np.uint8).reshape(-1, width)).all(axis=1)
        names = np.array(getattr(layout, part))
        found += names[~same].tolist()
    found += [
        name
        for name in layout.arrays
        if one.arrays[name].tobytes() != other.arrays[name].tobytes()
    ]
    measured = {**one.occasional, **other.occasional}
    found += [
        name
        for name in measured
        if repr(one.occasional.get(name)) != repr(other.occasional.get(name))
    ]
    return [name for name in found if name != TIME_WALL]


def first_difference(run, other):
    """(step, columns) where two runs first differ; None if they never do.

    Runs of different length are compared as far as the shorter one goes.
    """
    assert run.layout == other.layout
    for one, two in zip(run.records, other.records, strict=False):
        assert one.step == two.step
        columns = differing_columns(run.layout, one, two)
        if columns:
            return one.step, columns
    return None
