"""How parent and worker talk: one JSON object a line, over two pipes that nothing else writes to.

The worker's stdout and stderr are no part of it, since kernels, compilers and sanitizers print what they like. Requests
carry scenarios pickled (both sides are the same package, and only the parent writes them); replies are plain JSON,
because a worker may have been damaged by the kernel it ran.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import select
from dataclasses import asdict, dataclass
from typing import Any

from pagedbench.scenario.model import Scenario
from pagedbench.timing.options import TimingOptions

Message = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One cell as the worker gets it.

    `related` is the scenario that `equals` names. `suite` is the suite of checks. `timing` None: the cell is not timed.
    `diagnose` asks the fault catalogue when the cell fails, `floor` for the smallest fault that would be caught.
    """

    scenario: Scenario
    backend: str
    path: str
    device: str
    suite: str
    timing: TimingOptions | None = None
    related: Scenario | None = None
    diagnose: bool = True
    floor: bool = False
    pictures: bool = False

    def to_message(self) -> Message:
        """The request for it."""
        data = base64.b64encode(pickle.dumps(self)).decode()
        return {"do": "cell", "job": data}

    @staticmethod
    def from_message(message: Message) -> Job:
        """The job of a request."""
        job = pickle.loads(base64.b64decode(message["job"]))
        if not isinstance(job, Job):
            raise TypeError("the request holds no job")
        return job


@dataclass(frozen=True)
class ResolvedTarget:
    """What the worker knows of a backend that the command line named.

    `name` finds it again (`torch`, `my_kernel.py:my_decode`); `paths` to run, in order; `available` and `reason` on the
    device; `compile_seconds` the most that a first call may compile; `identity` changes when the code behind it does.
    `warnings` say what its import left changed in the process.
    """

    name: str
    paths: tuple[str, ...]
    available: bool
    reason: str | None = None
    version: str | None = None
    compile_seconds: float = 0.0
    identity: str = ""
    warnings: tuple[str, ...] = ()

    def to_message(self) -> Message:
        """As plain JSON."""
        return asdict(self)

    @staticmethod
    def from_message(message: Message) -> ResolvedTarget:
        """From plain JSON."""
        return ResolvedTarget(**{**message, **{name: tuple(message[name]) for name in ("paths", "warnings")}})


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """Lines of JSON over a pair of file descriptors."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._buffer = b""

    def send(self, message: Message) -> None:
        """Write one message. Raises `ChannelClosed`."""
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._write_fd, data) :]
        except OSError as error:
            raise ChannelClosed from error

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came within `timeout` seconds. Raises `ChannelClosed`."""
        while b"\n" not in self._buffer:
            if timeout is not None and not select.select([self._read_fd], [], [], timeout)[0]:
                return None
            data = os.read(self._read_fd, 1 << 20)
            if not data:
                raise ChannelClosed
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return _as_message(line)

    def close(self) -> None:
        """Close both ends."""
        for fd in (self._read_fd, self._write_fd):
            os.close(fd)


def _as_message(line: bytes) -> Message:
    """A reply that is no JSON comes from a worker with damaged memory: as good as gone."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ChannelClosed from error
    if not isinstance(message, dict):
        raise ChannelClosed
    return message
