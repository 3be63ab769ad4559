"""Files that are whole or not there."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``; a reader sees the old file or the new one.

    Raises:
        OSError: it could not be written; the old file is there, and nothing else, as
            the room of a half written one may be needed for the record.
    """
    # Two that write one file at once may not write one temporary file.
    writer = f"{os.getpid()}-{threading.get_ident()}"
    temporary = path.with_name(f"{path.name}.{writer}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
