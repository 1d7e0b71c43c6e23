"""A run that is told to end, once or twice, ends quietly with what it has done."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pagedbench.runner.session import Interrupted, sigterm_interrupts


@pytest.fixture(autouse=True)
def handler_kept() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def told_to_end() -> None:
    signal.raise_signal(signal.SIGTERM)


def test_a_second_signal_while_winding_up_is_ignored() -> None:
    done = []

    def run() -> None:
        try:
            told_to_end()
        finally:
            told_to_end()
            done.append("wound up")

    with pytest.raises(Interrupted), sigterm_interrupts():
        run()
    told_to_end()  # after the block, while the report is printed
    assert done == ["wound up"]


def test_one_that_comes_much_later_ends_the_process() -> None:
    code = (
        "import signal, time\n"
        "from pagedbench.runner import session\n"
        "session.ECHO_SECONDS = 0.0\n"
        "try:\n"
        "    with session.sigterm_interrupts():\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "except session.Interrupted:\n"
        "    time.sleep(0.01)\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "print('never')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


def test_a_lock_that_complains_of_the_interruption_does_not_hide_it() -> None:
    def wait_on_a_lock() -> None:
        try:
            told_to_end()
        except Interrupted:
            raise RuntimeError("release unlocked lock") from None

    with pytest.raises(Interrupted), sigterm_interrupts():
        wait_on_a_lock()


def test_errors_of_the_program_stay_themselves() -> None:
    with pytest.raises(RuntimeError, match="its own"), sigterm_interrupts():
        raise RuntimeError("its own")


def test_without_a_signal_the_handler_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_interrupts():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
