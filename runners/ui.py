"""``autopsy ui``: MLflow's own UI over the store of a root, on this machine only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console

from minigpt.records import InputError
from runners.store import default_uri, open_store


def serve(root: Path, uri: str | None, port: int, console: Console) -> int:
    """Serve until Ctrl-C; the exit code of the server.

    Raises:
        InputError: there is nothing to show yet.
    """
    if uri is None and not (root / "mlflow.db").is_file():
        raise InputError(
            f"MLflow store: expected {root / 'mlflow.db'}, found none; train a run "
            "first"
        )
    uri = uri or default_uri(root)
    open_store(uri)
    console.print(f"http://127.0.0.1:{port} (Ctrl-C ends it)", highlight=False)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    try:
        return subprocess.run(command, check=False).returncode  # noqa: S603
    except KeyboardInterrupt:
        return 0
