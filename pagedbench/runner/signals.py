"""Signals that wait while something must not be torn."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_wait() -> Iterator[None]:
    """Within the block, Ctrl-C and SIGTERM wait for its end (where the system can have them wait).

    A thread begun within it never hears of them: else the system might hand them to that one meanwhile, and Python
    interrupts the main thread all the same.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
