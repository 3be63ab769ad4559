"""The way to an MLflow store that may be away for a while."""

from __future__ import annotations

import time
from pathlib import Path

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from minigpt.records import InputError
from runners.mlflow_view import save_view
from runners.settings import redacted
from runners.store import ensure_experiment, first_line, open_store

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds between two attempts

# What a store that is away or refuses something raises; the last one is of requests
# and of the disk.
STORE_ERRORS = (MlflowException, InputError, OSError)


class Connection:
    """Opens a store when it is needed, and asks again after a while if it is away.

    Args:
        uri: the store.
        experiment: the MLflow experiment that runs go to; made if it is missing.
        root: the folder of all runs; see ``ensure_experiment``.

    Attributes:
        uri: as it may be written down.
        problem: why the store could not be used the last time.
    """

    def __init__(self, uri: str, experiment: str, root: Path) -> None:
        self._uri, self._experiment, self._root = uri, experiment, root
        self.uri = redacted(uri)
        self.problem = ""
        self._client: MlflowClient | None = None
        self._experiment_id = ""
        self._wait, self._again_at = FIRST_WAIT, 0.0

    @property
    def client(self) -> MlflowClient:
        """Of the store, once ``ready`` was true."""
        assert self._client
        return self._client

    @property
    def experiment_id(self) -> str:
        """Of the experiment, once ``ready`` was true."""
        return self._experiment_id

    def ready(self, at_once: bool = False) -> bool:
        """Whether the store answers, as far as is known.

        Args:
            at_once: ask it now, whatever it said before.
        """
        if not at_once and time.monotonic() < self._again_at:
            return False
        if self._client and not at_once and not self.problem:
            return True
        try:
            if self._client is None:
                self._open()
            else:
                self._client.search_experiments(max_results=1)
        except STORE_ERRORS as error:
            self._away(error)
            return False
        self.problem, self._wait, self._again_at = "", FIRST_WAIT, 0.0
        return True

    def _open(self) -> None:
        client = open_store(self._uri)
        self._experiment_id = ensure_experiment(
            client, self._uri, self._experiment, self._root
        )
        save_view(client, self._experiment_id)
        self._client = client

    def _away(self, error: Exception) -> None:
        self.problem = first_line(error)
        self._again_at = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, LONGEST_WAIT)
