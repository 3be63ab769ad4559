"""The golden loss curve: the first 60 steps of the default plan, seed 42.

A refactoring must not move it. After a change that means to move it:

    python -m tests.golden.regenerate

and say in the commit why the numbers are others.
"""

from pathlib import Path

from minigpt.records import TRAIN_LOSS
from minigpt.training import Session
from runners.config import RunConfig
from runners.execution import training_plan

STEPS = 60
GOLDEN = Path(__file__).with_name("default-seed-42.txt")


def losses() -> list[float]:
    """The losses of the steps, as the code is now."""
    session = Session(training_plan(RunConfig(steps=STEPS)))
    at = session.layout.scalars.index(TRAIN_LOSS)
    return [float(record.scalars[at]) for record in session.records()]


def main() -> None:
    """Write the file: a step and its loss a line, every digit of the float."""
    lines = (f"{step} {loss!r}\n" for step, loss in enumerate(losses()))
    GOLDEN.write_text("".join(lines))


if __name__ == "__main__":
    main()
