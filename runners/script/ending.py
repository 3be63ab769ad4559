"""How a script's run ends: by its own word, by an exception, or with its process."""

from __future__ import annotations

import atexit

# What closing a record imports needs this module, which cannot be imported any more
# once the process has begun to end.
import concurrent.futures.thread  # noqa: F401
import os
import sys
from pathlib import Path
from typing import Any

from minigpt.records import InputError
from runners.closing import Closing, describe
from runners.script.console import tell
from runners.script.record import LoggedRecord
from runners.tracker import Shipped, Tracker


def status_of(error: BaseException) -> tuple[str, str | None]:
    """Status and reason of a run that an exception ends."""
    if isinstance(error, KeyboardInterrupt):
        return "killed", type(error).__name__
    if isinstance(error, SystemExit):
        code = error.code
        return ("failed", f"exit code {code}") if code else ("finished", None)
    return "failed", describe(error)


class Ending:
    """Closes one run, once; at the end of the process if nobody did before.

    It changes no signal handler and no exception hook: both belong to the script.

    Args:
        folder: the run folder; None has nothing to close.
        manifest: as it is.
        record: the run's rows.
        tracker: told of the page; its answer is waited for.

    Attributes:
        done: whether the run is closed.
        failure: what could not be done about it.
    """

    def __init__(
        self,
        folder: Path | None,
        manifest: dict[str, Any],
        record: LoggedRecord,
        tracker: Tracker,
    ) -> None:
        self._folder, self._manifest = folder, manifest
        self._record, self._tracker = record, tracker
        self._pid, self._uncaught = os.getpid(), _uncaught()
        self.done, self.failure = False, None
        atexit.register(self._at_exit)

    def close(self, status: str, error: str | None) -> None:
        """Close the folder, draw its page, wait for MLflow and say what became of it.

        Args:
            status: finished, failed or killed.
            error: why it did not finish.

        Raises:
            KeyboardInterrupt: while MLflow is waited for; the shipper goes on.
        """
        self.done = True
        atexit.unregister(self._at_exit)
        if self._folder is None:
            self._record.close()
            return
        closing = Closing(self._folder, self._manifest, self._record)
        result = closing.close(status, error)
        self.failure = closing.failure
        self._draw()
        shipped = self._tracker.close(tell)
        reason = f" ({result.error})" if result.error else ""
        tell(
            f"{self._folder}: {result.status}{reason}, {result.steps:,} steps; "
            f"{self._in_mlflow(shipped)}"
        )

    def _draw(self) -> None:
        from runners.dashboard import write_dashboard  # and what it draws with

        assert self._folder
        try:
            self._tracker.attach(write_dashboard(self._folder))
        except (InputError, OSError) as error:
            tell(f"no dashboard: {error}")

    def _in_mlflow(self, shipped: list[Shipped]) -> str:
        if self._manifest["tracking"]["kind"] != "mlflow":
            return "`autopsy sync` brings it to MLflow"
        problems = [answer.problem for answer in shipped if answer.problem]
        if problems:
            return (
                f"not complete in MLflow: {'; '.join(problems)}; nothing recorded is "
                "lost: `autopsy sync` completes MLflow"
            )
        return f"MLflow run {next((one.run_id for one in shipped), None)}"

    def _at_exit(self) -> None:
        if self.done or os.getpid() != self._pid:
            return  # a forked child ends; the run is its parent's
        error = _uncaught()
        if error is None or error is self._uncaught:
            self.close("finished", None)
        else:
            self.close(*status_of(error))
        if self.failure:
            tell(f"the run folder could not be closed: {self.failure}")


def _uncaught() -> BaseException | None:
    """The exception that Python has last told somebody about."""
    return getattr(sys, "last_value", None)
