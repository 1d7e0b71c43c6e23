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

ECHO_SECONDS = {signal.SIGINT: 3.0, signal.SIGTERM: 10.0}
"""For so long after a first signal another one is the same wish, said again."""


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
        with ending_signals_interrupt():
            yield interruption
    except Interrupted:
        interruption.by = signal.SIGTERM
    except KeyboardInterrupt:
        interruption.by = signal.SIGINT


@contextmanager
def ending_signals_interrupt() -> Iterator[None]:
    """Within the block, SIGTERM raises `Interrupted` where the program stands, and Ctrl-C `KeyboardInterrupt`.

    `timeout` and process managers send it twice, to the process and to its group, and people press Ctrl-C twice: while
    what was done is brought home, within the block and after it, the repeated signal is ignored; one that comes
    `ECHO_SECONDS` later ends the process. Who started the program without Ctrl-C (`nohup`) has it so.
    """
    came: list[tuple[float, BaseException]] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not came:
            came.append((time.monotonic(), Interrupted() if number == signal.SIGTERM else KeyboardInterrupt()))
            raise came[0][1]
        if time.monotonic() - came[0][0] > ECHO_SECONDS[signal.Signals(number)]:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
            signal.raise_signal(number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    handled = [number for number in _ENDING if before[number] is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    except Exception as error:
        # Raised inside a lock's own code, `Interrupted` is replaced by that code's complaint about it.
        if came:
            raise came[0][1] from error
        raise
    finally:
        for number in handled:
            # A block within that was ended still ignores.
            if signal.getsignal(number) is interrupt and not came:
                signal.signal(number, before[number])


def ignore_repeated() -> None:
    """For the end of a program that a signal ended: pressed again while the interpreter winds up, it would change the
    exit code, which is settled."""
    for number in _ENDING:
        if callable(handler := signal.getsignal(number)) and handler is not signal.default_int_handler:
            signal.signal(number, signal.SIG_IGN)


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
