"""What the doctor answers of one thing, and the time that a look at it may take."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

OK, WARNING, PROBLEM = "ok", "warning", "problem"
NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Check:
    """One row of the doctor's table.

    Attributes:
        name: what was looked at.
        answer: ok, warning, problem or not applicable.
        found: what was found there, or why it does not apply.
        advice: what to do; empty where there is nothing to do.
    """

    name: str
    answer: str
    found: str
    advice: str = ""


def within(seconds: float, look: Callable[[], list[Check]]) -> list[Check] | None:
    """What a look finds; None if it takes longer, and then it is left to itself.

    A server may accept a connection and never answer, or answer a byte at a time; a
    time limit on the socket alone does not end that.
    """
    answers: queue.SimpleQueue[list[Check] | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(look())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        return None
    if isinstance(answer, BaseException):
        raise answer
    return answer
