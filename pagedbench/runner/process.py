"""One worker process as the parent sees it: started, talked to, watched, ended. What it is asked to do is `pool.py`'s.

The worker gets a session of its own, so that a Ctrl-C at the terminal reaches the parent alone and the whole family of
a worker (compilers, sanitizer) can be killed at once. Its stdout and stderr go to an unnamed file, read from the
cell's start on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pagedbench
from pagedbench.results.text import printable
from pagedbench.runner.limits import GIB, resident_bytes
from pagedbench.runner.paths import shorten_paths
from pagedbench.runner.protocol import Channel, ChannelClosed, Message

STDERR_TAIL = 4000
_OUTPUT_CAP = 64 << 20  # a kernel that prints for ever must not fill the disk
_POLL_SECONDS = 0.1
COMPILERS = 4  # that a worker beside others may run at a time: one would leave the cores idle when the others are done


class WorkerGone(Exception):
    """The worker ended, or was ended, in the middle of a request. `reason` is a sentence; `timed_out` says which."""

    def __init__(self, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.timed_out = timed_out


class WorkerProcess:
    """A running worker for a device (`auto`, `cpu`, `cuda`).

    `wrapper` is a command to run it under (a sanitizer). `memory_limit` is in resident bytes, `threads` how many its
    libraries use where the user's environment does not say (None: their own choice).
    """

    def __init__(
        self, device: str, wrapper: Sequence[str] = (), memory_limit: int | None = None, threads: int | None = None
    ) -> None:
        self._wrapped = bool(wrapper)
        self._memory_limit = memory_limit
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._output_start = 0
        child_reads, parent_writes = os.pipe()
        parent_reads, child_writes = os.pipe()
        arguments = [str(child_reads), str(child_writes), str(os.getpid()), device]
        worker = [sys.executable, "-m", "pagedbench.runner.worker", *arguments]
        try:
            self._process = subprocess.Popen(
                [*wrapper, *worker],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(child_reads, child_writes),
                start_new_session=True,
                env=_environment(threads, wrapped=self._wrapped),
            )
        finally:
            os.close(child_reads)
            os.close(child_writes)
        self._channel = Channel(parent_reads, parent_writes)

    @property
    def pid(self) -> int:
        """Process id of the worker, or of the wrapper it runs under."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Send a request; from here on, output counts as this request's."""
        self._output_start = os.fstat(self._output.fileno()).st_size
        try:
            self._channel.send(message)
        except ChannelClosed:
            raise WorkerGone(self._end_of_life()) from None

    def receive(self, seconds: float) -> Message:
        """The next reply. Raises `WorkerGone` when the worker dies, breaks its limit or says nothing for `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                message = self._channel.receive(_POLL_SECONDS)
            except ChannelClosed:
                raise WorkerGone(self._end_of_life()) from None
            if message is not None:
                return message
            self._watch(deadline, seconds)

    def _watch(self, deadline: float, seconds: float) -> None:
        """End the worker when it breaks a limit. Its death is looked for too: a forked child may hold the pipe open."""
        if self._process.poll() is not None:
            raise WorkerGone(self._end_of_life())
        if os.fstat(self._output.fileno()).st_size > _OUTPUT_CAP:
            self._output.truncate(0)
            self._output_start = 0
        if self._memory_limit is not None and (used := self._resident_bytes()) > self._memory_limit:
            self.kill()
            raise WorkerGone(
                f"stopped: it used {used / GIB:.1f} GiB of host memory, the limit is {self._memory_limit / GIB:.1f} GiB"
            )
        if time.monotonic() > deadline:
            self.kill()
            raise WorkerGone(f"no answer within {round(seconds, 1):g} s", timed_out=True)

    def _resident_bytes(self) -> int:
        """Memory of the worker; of all its family under a wrapper, which starts the worker as a child."""
        return resident_bytes(self.pid, family=self._wrapped)

    def _end_of_life(self) -> str:
        """Why the worker is gone, as a sentence."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its connection"
        self.kill()
        if code >= 0:
            return f"the worker process exited with status {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return _SIGNALS.get(name, f"the worker process was ended by {name}")

    def output(self, tail: int = STDERR_TAIL) -> str:
        """What the worker printed since the last request, of its last `tail` bytes the whole lines, paths shortened."""
        size = os.fstat(self._output.fileno()).st_size
        start = max(self._output_start, size - tail)
        data = os.pread(self._output.fileno(), max(size - start, 0), start)
        if start > self._output_start:  # half a frame of a stack would read as the kernel's own word
            data = data.partition(b"\n")[2] or data
        return printable(shorten_paths(data.decode(errors="replace"))).strip()

    def tell_to_end(self) -> None:
        """Have the worker and its family ended, without waiting for it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the worker and its family now."""
        self.tell_to_end()
        self._process.wait()

    def close(self) -> None:
        """End the worker. A wrapper may still have a report to write and is asked to; a worker alone has nothing to."""
        if self._wrapped:
            with contextlib.suppress(ChannelClosed, subprocess.TimeoutExpired):
                self._channel.send({"do": "exit"})
                self._process.wait(timeout=10)
        self.kill()
        self._channel.close()
        self._output.close()


_SIGNALS = {
    "SIGSEGV": "segmentation fault (SIGSEGV)",
    "SIGABRT": "abort() was called (SIGABRT)",
    "SIGBUS": "bus error (SIGBUS)",
    "SIGFPE": "arithmetic exception (SIGFPE)",
    "SIGILL": "illegal instruction (SIGILL)",
    "SIGKILL": "killed (SIGKILL), most likely for want of memory",
}


def _environment(threads: int | None, *, wrapped: bool) -> dict[str, str]:
    """The worker's environment: it finds this very package, and never a module that happens to lie in the folder."""
    root = str(Path(pagedbench.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    extra = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    if wrapped:
        # torch's caching allocator would hide reads past the end of a tensor from the sanitizer.
        extra |= {"PAGEDBENCH_WRAPPED": "1", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    # Helper threads that spin while they wait make a busy machine many times slower than one that lets them sleep.
    defaults = {"OMP_WAIT_POLICY": "PASSIVE"}
    if threads:
        # Libraries that compile CUDA at their first call start a compiler a core, of some gigabytes each.
        defaults |= {"OMP_NUM_THREADS": str(threads), "MAX_JOBS": str(max(threads, COMPILERS))}
    return {**defaults, **os.environ, **extra}
