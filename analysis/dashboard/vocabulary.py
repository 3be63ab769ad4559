"""Token ids back to text, for the batches that a page shows."""

from __future__ import annotations

import json
import stat
from functools import cache
from typing import Any

from analysis.history import RunHistory
from minigpt.records import InputError

MAX_BYTES = 64 << 20


def read_vocabulary(run: RunHistory) -> dict[int, str]:
    """Token id -> its text, from the vocabulary file of the run folder.

    The file is a tokenizer.json of byte-level BPE. Bytes that are no whole character
    appear as U+FFFD.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    if run.facts.vocabulary is None:
        raise InputError("the manifest names no vocabulary file")
    path = run.folder / run.facts.vocabulary
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would never end
            raise ValueError("no regular file")
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        document = json.loads(path.read_bytes())
        return _texts(document)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{path.name}: expected a tokenizer.json, found: {reason:.200}"
        ) from None


def _texts(document: Any) -> dict[int, str]:
    model = document.get("model") if isinstance(document, dict) else None
    pieces = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(pieces, dict):
        raise ValueError("no model.vocab in it")
    texts = {}
    for piece, number in pieces.items():
        if type(number) is not int:  # a bool is one of Python's integers
            raise ValueError(f"the id of {piece!r:.40} is {number!r:.40}")
        texts[number] = _decoded(piece)
    added = document.get("added_tokens") or []
    for token in added if isinstance(added, list) else []:
        if not isinstance(token, dict):
            continue
        number, content = token.get("id"), token.get("content")
        if type(number) is int and isinstance(content, str):
            texts[number] = content
    return texts


def _decoded(piece: str) -> str:
    """The text of a byte-level piece; one that is none is text already."""
    table = _byte_of_character()
    if not all(character in table for character in piece):
        return piece
    return bytes(table[character] for character in piece).decode("utf-8", "replace")


@cache
def _byte_of_character() -> dict[str, int]:
    """How byte-level BPE writes bytes as printable characters.

    Reference:
        Radford et al. (2019), GPT-2, encoder.py, ``bytes_to_unicode``.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}
