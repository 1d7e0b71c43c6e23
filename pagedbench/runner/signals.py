"""Signals that wait while something must not be torn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM)


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
