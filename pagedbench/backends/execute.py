"""How a call is driven down its path: what the tool does itself (write, gather) and what the backend does.

varlen: write the new tokens by slot, gather every key, attention on contiguous keys. decode and paged-varlen: attention
through the block table; where the backend does not append, the tool writes first. The stages are apart so that they can
be timed apart. An empty batch is called like any other: a backend that cannot take one says so in `unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from pagedbench.backends.base import PATH_METHODS, Backend, Output
from pagedbench.tensors.call import Call
from pagedbench.tensors.kvcache import PagedKVCache
from pagedbench.words import AttnPath


@dataclass(frozen=True)
class Stage:
    """One step of a call: `write`, `gather` or `attention`. The last stage's `run` returns the output."""

    name: str
    run: Callable[[], Output | None]


def stages(backend: Backend, call: Call, plan: Any) -> list[Stage]:
    """The steps of a call in order. Running them again does the same again: the append writes the same slots."""
    path = call.spec.path
    cache = PagedKVCache(call.k_cache, call.v_cache)
    attend: Callable[[Call, Any], Output] = getattr(backend, PATH_METHODS[path])
    steps = [Stage("write", lambda: _write(cache, call))] if tool_writes(backend, call) else []
    if path is AttnPath.VARLEN:
        steps.append(Stage("gather", lambda: _gather(cache, call)))
    return [*steps, Stage("attention", lambda: attend(call, plan))]


def tool_writes(backend: Backend, call: Call) -> bool:
    """Whether the tool writes the new tokens: something is appended, and the path's function does not do it."""
    if call.k_new is None or call.v_new is None:
        return False
    return call.spec.path is AttnPath.VARLEN or not backend.traits_for(call.spec.path).appends


Plans = dict[Hashable, Any]
"""Plans by `Backend.plan_key`, of calls that may share them."""


def execute(backend: Backend, call: Call, plans: Plans | None = None) -> Output:
    """Plan, unless `plans` has one, and run every stage; the output of the attention stage. Does not synchronise."""
    return next(execute_again(backend, call, 1, plans))


def execute_again(backend: Backend, call: Call, times: int, plans: Plans | None = None) -> Iterator[Output]:
    """Plan once and run every stage so many times, as the layers of a model do. Outputs may share their memory."""
    steps = stages(backend, call, planned(backend, call, plans))
    for _ in range(times):
        output: Output | None = None
        for stage in steps:
            output = stage.run()
        if output is None:
            raise TypeError(f"{backend.name} returned no Output from its {call.spec.path} function")
        yield output


def planned(backend: Backend, call: Call, plans: Plans | None) -> Any:
    """The plan of a call, one of `plans` where these may be shared."""
    key = None if plans is None else backend.plan_key(call)
    if plans is None or key is None:
        return backend.plan(call)
    if key not in plans:
        plans[key] = backend.plan(call)
    return plans[key]


def _write(cache: PagedKVCache, call: Call) -> None:
    if call.k_new is not None and call.v_new is not None:
        cache.write(call.k_new, call.v_new, call.write_slots, call.written)


def _gather(cache: PagedKVCache, call: Call) -> None:
    call.k, call.v = cache.gather(call.read_slots)
