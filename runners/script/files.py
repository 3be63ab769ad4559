"""Tables, figures and files that a script gives to its run, below ``artifacts/``."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minigpt.records import InputError
from runners.run_names import slug
from runners.script.values import brief

ARTIFACTS = "artifacts"
TABLES, FIGURES, FILES = "tables", "figures", "files"
MAX_CELLS = 1_000_000  # of a table


class RunFiles:
    """The folder of a run's files; a name is made of a key and never of a path.

    Args:
        folder: the run folder; None checks everything and writes nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder and folder / ARTIFACTS

    def table(self, key: str, rows: Any) -> Path | None:
        """Write a table as the JSON that MLflow shows.

        Args:
            key: checked already.
            rows: dicts, or a dict of columns, or a DataFrame.

        Raises:
            InputError: it is no table, or one of more than a million cells.
            OSError: it cannot be written.
        """
        columns, data = as_table(key, rows)
        text = json.dumps({"columns": columns, "data": data}, allow_nan=False)
        return self._place(TABLES, key, ".json", lambda p: p.write_text(text, "utf-8"))

    def figure(self, key: str, figure: Any) -> Path | None:
        """Write a figure of matplotlib or plotly, or an image of PIL.

        Raises:
            InputError: it is none of these.
            OSError: it cannot be written.
        """
        if hasattr(figure, "savefig"):
            return self._place(
                FIGURES, key, ".png", lambda p: figure.savefig(p, format="png")
            )
        if hasattr(figure, "write_html"):
            return self._place(FIGURES, key, ".html", lambda p: figure.write_html(p))
        if hasattr(figure, "save") and hasattr(figure, "mode"):
            return self._place(
                FIGURES, key, ".png", lambda p: figure.save(p, format="PNG")
            )
        raise InputError(
            f"{key}: expected a figure of matplotlib or plotly, or an image of PIL, "
            f"got {type(figure).__name__}"
        )

    def file(self, path: Any) -> Path | None:
        """Copy a file or a folder.

        Raises:
            InputError: there is none at that path.
            OSError: it cannot be read or written.
        """
        try:
            source = Path(path)
        except TypeError:
            raise InputError(f"artifact: expected a path, got {brief(path)}") from None
        if source.is_dir():
            return self._place(
                FILES, source.resolve().name, "", lambda p: shutil.copytree(source, p)
            )
        if not source.is_file():
            raise InputError(
                f"artifact {source}: expected a file or folder, found none"
            )
        write = lambda place: shutil.copyfile(source, place)  # noqa: E731
        return self._place(FILES, source.stem, slug_of_suffix(source), write)

    def _place(
        self, kind: str, key: str, suffix: str, write: Callable[[Path], Any]
    ) -> Path | None:
        """Let a file be written under a name that no other has; nobody sees half."""
        if self._folder is None:
            return None
        folder = self._folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        name, number = slug(key), 1
        while (path := folder / _numbered(name, number, suffix)).exists():
            number += 1
        # Its own suffix stays at the end: who writes it may go by that.
        partial = folder / f".{path.stem}.tmp{suffix}"
        try:
            write(partial)
            partial.rename(path)
        finally:
            if partial.is_dir():
                shutil.rmtree(partial)
            partial.unlink(missing_ok=True)
        return path


def _numbered(name: str, number: int, suffix: str) -> str:
    return f"{name}{suffix}" if number == 1 else f"{name}-{number}{suffix}"


def slug_of_suffix(path: Path) -> str:
    """The end of a file's name that says what it is, as far as it is plain."""
    return f".{slug(path.suffix)}" if path.suffix.strip(".") else ""


def as_table(key: str, rows: Any) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of plain JSON; NaN and infinities become text.

    Raises:
        InputError: see ``RunFiles.table``.
    """
    if hasattr(rows, "columns") and hasattr(rows, "itertuples"):
        names = list(rows.columns)
        data = [list(row) for row in rows.itertuples(index=False, name=None)]
    elif isinstance(rows, Mapping):
        names, data = list(rows), _transposed(key, rows)
    else:
        names, data = _of_dicts(key, rows)
    if len(names) * len(data) > MAX_CELLS:
        raise InputError(
            f"{key}: expected a table of at most {MAX_CELLS:,} cells, got "
            f"{len(names) * len(data):,}"
        )
    return [str(name) for name in names], [[_cell(one) for one in row] for row in data]


def _transposed(key: str, columns: Mapping[Any, Any]) -> list[list[Any]]:
    lists = []
    for name, column in columns.items():
        if isinstance(column, str) or not hasattr(column, "__len__"):
            raise InputError(f"{key}.{name}: expected a column, got {brief(column)}")
        lists.append(list(column))
    lengths = sorted({len(column) for column in lists})
    if len(lengths) > 1:
        raise InputError(
            f"{key}: expected columns of one length, got {lengths[0]} to {lengths[-1]}"
        )
    return [list(row) for row in zip(*lists, strict=True)]


def _of_dicts(key: str, rows: Any) -> tuple[list[Any], list[list[Any]]]:
    listed = isinstance(rows, Sequence) and not isinstance(rows, str)
    if not listed or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(
            f"{key}: expected rows as dicts, a dict of columns or a DataFrame, got "
            f"{brief(rows)}"
        )
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, [[row.get(name) for name in names] for row in rows]


def _cell(value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)
