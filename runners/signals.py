"""Signals: SIGTERM unwinds the stack as Ctrl-C does; neither cuts a closing short."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

Handler = Callable[[int, FrameType | None], None]


class Terminated(BaseException):
    """SIGTERM arrived; like KeyboardInterrupt, not an error of the code."""


INTERRUPTS = (KeyboardInterrupt, Terminated)


def exit_code(interrupt: BaseException) -> int:
    """What a shell expects of a command that a signal ended: 130 or 143."""
    return 143 if isinstance(interrupt, Terminated) else 130


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise Terminated; it would otherwise skip every ``finally``."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise Terminated

    with _handled(handler, signal.SIGTERM):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the block is done, then raise the first."""
    caught: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    try:
        with _handled(handler, signal.SIGINT, signal.SIGTERM):
            yield
    finally:
        if caught:
            raise _interrupt(caught[0])


class Arrived:
    """The first signal that came while a step was under way."""

    def __init__(self) -> None:
        self._first: int | None = None

    @property
    def arrived(self) -> bool:
        """Whether a signal came."""
        return self._first is not None

    def take(self, number: int, frame: FrameType | None) -> None:
        """Keep the first signal; the second one is impatient and is raised at once."""
        if self._first is not None:
            raise _interrupt(number)
        self._first = number

    def raise_it(self) -> NoReturn:
        """Raise what came."""
        assert self._first is not None
        raise _interrupt(self._first)


@contextmanager
def between_steps() -> Iterator[Arrived]:
    """Let Ctrl-C and SIGTERM wait for the end of the step that is under way."""
    arrived = Arrived()
    with _handled(arrived.take, signal.SIGINT, signal.SIGTERM):
        yield arrived
    if arrived.arrived:  # after the last look at it
        arrived.raise_it()


def _interrupt(number: int) -> BaseException:
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


@contextmanager
def _handled(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Another handler for a while; only the main thread may, so others change none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
