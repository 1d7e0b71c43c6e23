"""The worker process, where everything runs that may crash.

Started as `python -m pagedbench.runner.worker READ_FD WRITE_FD PARENT_PID DEVICE`.

It answers these requests: `environment` (versions and hardware), `resolve` (which backends do these names mean, and
what can they do), `describe` (what does one say of itself), `cell` (judge one), `versus` (time several side by side)
and `exit`. Judging is `cell.py`'s,
comparing `versus.py`'s; this module keeps the process: its ties to the parent, and when it is used up.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pagedbench.errors import PagedbenchError, UsageError
from pagedbench.runner.limits import bind_life_to_parent
from pagedbench.runner.protocol import Channel, ChannelClosed, Job, Message

_BEFORE_THE_END = 1.0  # second


def serve(channel: Channel, wanted_device: str) -> bool:
    """Answer requests until there are no more, or until this process is spent (then True)."""
    from pagedbench.runner.environment import choose_device  # torch, after the ties to the parent are made

    try:
        device = choose_device(wanted_device)
    except UsageError as error:
        channel.send({"event": "refused", "message": error.message, "hint": error.hint})
        return False
    channel.send({"event": "ready", "device": device})
    while True:
        request = channel.receive()
        if request is None or request["do"] == "exit":
            return False
        if _HANDLERS[request["do"]](channel, request):
            return True


def _environment(channel: Channel, request: Message) -> bool:
    """Reply with versions and hardware: asked for once a run, since the driver takes its time to answer."""
    from pagedbench.runner.environment import collect

    channel.send({"event": "environment", "environment": collect(request["device"])})
    return False


def _resolve(channel: Channel, request: Message) -> bool:
    """Reply with a `ResolvedTarget` for each name, or with the usage error of a name that means nothing."""
    from pagedbench.runner.targets import resolve

    with _refusing(channel):
        found = resolve(request["targets"], request["paths"], request["device"], ask=request["ask"])
        channel.send({"event": "resolved", "targets": [target.to_message() for target in found]})
    return False


def _describe(channel: Channel, request: Message) -> bool:
    """Reply with the `BackendReport` of one name, or with the usage error of a name that means nothing."""
    from pagedbench.backends.registry import backend_of
    from pagedbench.runner.listing import describe

    with _refusing(channel):
        channel.send({"event": "described", "report": describe(backend_of(request["backend"]), request["device"])})
    return False


@contextlib.contextmanager
def _refusing(channel: Channel) -> Iterator[None]:
    """Tell the parent why a name cannot be loaded. A KeyboardInterrupt is the file's own: Ctrl-C reaches the parent
    alone."""
    try:
        yield
    except PagedbenchError as error:
        channel.send({"event": "refused", "message": error.message, "hint": error.hint})
    except KeyboardInterrupt as error:
        from pagedbench.runner.cell import place_in_users_file

        message = f"KeyboardInterrupt, raised when it is imported{place_in_users_file(error)}"
        channel.send({"event": "refused", "message": message, "hint": None})


@contextlib.contextmanager
def _telling(channel: Channel, seconds: float) -> Iterator[Callable[..., None]]:
    """A function that tells the parent of an event.

    The parent ends a worker that tells nothing for `seconds`, and what a stage asks for beyond. Shortly before that, a
    thread of the interpreter's own prints where the code stands: a signal might not be heard inside a driver.
    """

    allowance = 0.0

    def watch() -> None:
        faulthandler.dump_traceback_later(seconds + allowance - min(_BEFORE_THE_END, seconds / 4))

    def tell(event: str, **values: Any) -> None:
        nonlocal allowance
        allowance = values.get("allowance", allowance)
        watch()
        channel.send({"event": event, **values})

    watch()
    try:
        yield tell
    finally:
        faulthandler.cancel_dump_traceback_later()


def _cell(channel: Channel, request: Message) -> bool:
    """Judge one cell; True when this process is spent. Each stage and check is told at once: a crash loses the rest."""
    from pagedbench.backends.registry import find_backend
    from pagedbench.runner.cell import judge
    from pagedbench.runner.common import LAST
    from pagedbench.runner.state import changes, process_state

    job = Job.from_message(request)
    with _telling(channel, request["seconds"]) as tell:
        tell("stage", name="its import", allowance=0.0)
        with contextlib.suppress(PagedbenchError):  # `judge` says it
            find_backend(job.backend)
        before = process_state()  # what the import changes was said of the target, and would be so in any worker
        judged = judge(job, tell, common=LAST)
    changed = changes(before)
    judged.record.warnings += changed
    spent = judged.worker_is_spent or bool(changed)
    # What is left by now is modules and their data: walking them again after each cell costs more than the checks.
    gc.freeze()
    channel.send({"event": "done", "record": judged.record.to_json(), "spent": spent})
    return spent


def _versus(channel: Channel, request: Message) -> bool:
    """Time several sides side by side; True when this process is spent."""
    from pagedbench.runner.cell import read_failure
    from pagedbench.runner.common import LAST
    from pagedbench.runner.versus import versus
    from pagedbench.runner.versus_job import VersusJob

    try:
        with _telling(channel, request["seconds"]) as tell:
            found = versus(VersusJob.from_message(request), tell, LAST)
        channel.send({"event": "done", "found": found, "spent": False})
    except (Exception, SystemExit) as error:
        failure = read_failure(error)
        channel.send({"event": "failed", "message": failure.message, "spent": failure.worker_is_spent})
        return failure.worker_is_spent
    return False


_HANDLERS = {"environment": _environment, "resolve": _resolve, "describe": _describe, "cell": _cell, "versus": _versus}


def main(arguments: list[str]) -> None:
    """Set the process up and serve."""
    read_fd, write_fd, parent = (int(a) for a in arguments[:3])
    bind_life_to_parent(parent)
    os.environ.pop("PYTHONSAFEPATH", None)  # meant for this process, not for what kernels start
    for fd in (read_fd, write_fd):
        os.set_inheritable(fd, False)
    faulthandler.enable()
    spent = False
    with contextlib.suppress(ChannelClosed):
        spent = serve(Channel(read_fd, write_fd), arguments[3])
    if spent:  # perhaps with a dead CUDA context, whose destructors hang or abort
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
