"""Ctrl-C and SIGTERM: they end long work early, so that what it did can be shown, and wait while something must not be
torn."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM)

SIGNAL_EXIT = 128
"""What is added to a signal's number for the exit code of a command that it ended."""

ECHO_SECONDS = 10.0
"""For so long after a SIGTERM another one is the same wish, said again."""


class Interrupted(KeyboardInterrupt):
    """SIGTERM, raised like Ctrl-C."""


@dataclass
class Interruption:
    """`by` is the signal that ended a block early, None if the block went to its end."""

    by: signal.Signals | None = None


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """A block that Ctrl-C or SIGTERM ends early; what follows it is done all the same. Tells which signal it was."""
    interruption = Interruption()
    try:
        with sigterm_interrupts():
            yield interruption
    except Interrupted:
        interruption.by = signal.SIGTERM
    except KeyboardInterrupt:
        interruption.by = signal.SIGINT


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Within the block, SIGTERM raises `Interrupted` where the program stands.

    `timeout` and process managers send it twice, to the process and to its group: while what was done is brought home,
    within the block and after it, the repeated signal is ignored; one that comes `ECHO_SECONDS` later ends the process.
    """
    came: list[float] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not came:
            came.append(time.monotonic())
            raise Interrupted
        if time.monotonic() - came[0] > ECHO_SECONDS:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except Exception as error:
        # Raised inside a lock's own code, `Interrupted` is replaced by that code's complaint about it.
        if came:
            raise Interrupted from error
        raise
    finally:
        if signal.getsignal(signal.SIGTERM) is interrupt and not came:  # a block within that was ended still ignores
            signal.signal(signal.SIGTERM, before)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Within the block, Ctrl-C and SIGTERM wait for its end, and are then handled as they would have been.

    To have the system hold them back would not do: it hands them to any other thread, and Python interrupts the main
    thread all the same. In other threads than that one, nothing has to wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = [(number, signal.signal(number, note)) for number in _ENDING]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for late in came:
            signal.raise_signal(late)
