"""The triton backend's decode against FlashAttention-3 and the card's own read bandwidth, in one run.

    python benchmarks/triton_decode.py [--json FILE]

Each call appends one token a sequence and attends to all keys through a block table in random order. Timed as a CUDA
graph replay between two events, with a cold L2: before each replay a buffer larger than the L2 is read (reading leaves
nothing behind that the timed call would have to write back). The contenders take turns, so that a drift of the clocks
meets all of them; the figure is the median. Needs a CUDA GPU; `flash_attn_interface` is left out where it is missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pagedbench.backends.triton_kernels.launch import PagedBatch, paged_attention

BLOCK_SIZE, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, DTYPE = 16, 32, 8, 128, torch.bfloat16
ROUNDS = 60


@dataclass(frozen=True)
class Workload:
    """Sequences, and the keys of each after the step."""

    sequences: int
    keys: int

    def __str__(self) -> str:
        return f"{self.sequences} × {self.keys:,}"

    @property
    def bytes(self) -> int:
        """Bytes that any kernel must move: K, V (the new token's are read, too, and written once), q and output."""
        token = NUM_KV_HEADS * HEAD_DIM * 2
        per_sequence = (self.keys + 1) * token + 2 * NUM_HEADS * HEAD_DIM
        return self.sequences * per_sequence * DTYPE.itemsize


WORKLOADS = (Workload(3, 70), Workload(1, 131_072), Workload(16, 4_096), Workload(64, 8_192), Workload(256, 2_048))


def make_batch(work: Workload, device: str = "cuda") -> PagedBatch:
    """Random K and V in blocks shuffled over the whole pool."""
    columns = -(-work.keys // BLOCK_SIZE)
    pool = (work.sequences * columns, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=DTYPE)

    return PagedBatch(
        q=random(work.sequences, NUM_HEADS, HEAD_DIM),
        k_cache=random(*pool),
        v_cache=random(*pool),
        block_table=torch.randperm(pool[0], device=device).int().view(work.sequences, columns),
        seqlens=torch.full((work.sequences,), work.keys - 1, device=device, dtype=torch.int32),
        cu_seqlens_q=torch.arange(work.sequences + 1, device=device, dtype=torch.int32),
        max_seqlen_q=1,
        max_seqlen_k=work.keys,
        softmax_scale=HEAD_DIM**-0.5,
        query_len=1,
        k_new=random(work.sequences, NUM_KV_HEADS, HEAD_DIM),
        v_new=random(work.sequences, NUM_KV_HEADS, HEAD_DIM),
    )


def flash_attention_3(batch: PagedBatch) -> Callable[[], object] | None:
    """The same call with FlashAttention-3 and its own choice of splits, or None where it is missing."""
    try:
        from flash_attn_interface import flash_attn_with_kvcache
    except (ImportError, OSError):
        return None
    assert batch.k_new is not None
    assert batch.v_new is not None
    q, k_new, v_new = batch.q[:, None], batch.k_new[:, None], batch.v_new[:, None]
    return lambda: flash_attn_with_kvcache(
        q,
        batch.k_cache,
        batch.v_cache,
        k=k_new,
        v=v_new,
        cache_seqlens=batch.seqlens,
        page_table=batch.block_table,
        softmax_scale=batch.softmax_scale,
        causal=True,
        num_splits=0,
    )


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """The call as a CUDA graph."""
    torch.cuda.synchronize()  # the inputs may still be in the making
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


class ColdClock:
    """Times calls with a cold L2."""

    def __init__(self) -> None:
        self._flush = torch.ones(4 * torch.cuda.get_device_properties(0).L2_cache_size, device="cuda", dtype=torch.int8)

    def medians(self, calls: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
        """Median time of each call in µs. Nothing is waited for until all are queued."""
        events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                self._flush.view(torch.int32).amax()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                begin.record()
                call()
                end.record()
                events[name].append((begin, end))
        torch.cuda.synchronize()
        return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) * 1e3 for name, pairs in events.items()}


def read_bandwidth(clock: ColdClock) -> float:
    """Bytes a second at which the card reads 4 GiB, by a sum."""
    data = torch.ones(1 << 30, device="cuda")
    return data.nbytes / clock.medians({"read": data.sum}, rounds=15)["read"] * 1e6


def measure(work: Workload, clock: ColdClock, bandwidth: float) -> dict[str, float | str]:
    """One row of the table."""
    batch = make_batch(work)
    calls: dict[str, Callable[[], object]] = {"triton": captured(lambda: paged_attention(batch))}
    peer = flash_attention_3(batch)
    if peer is not None:
        calls["flash-attn-3"] = captured(peer)
    times = clock.medians(calls)
    row: dict[str, float | str] = {"batch × keys": str(work), **{f"{name} µs": t for name, t in times.items()}}
    rate = work.bytes / times["triton"] * 1e6
    row |= {"GB/s": rate / 1e9, "of read bandwidth": rate / bandwidth}
    if peer is not None:
        row["flash-attn-3 / triton"] = times["flash-attn-3"] / times["triton"]
    return row


def print_table(rows: list[dict[str, float | str]]) -> None:
    """Columns as in the first row; four digits."""
    cells = [list(rows[0]), *([v if isinstance(v, str) else f"{v:.4g}" for v in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def main() -> None:
    """Measure every workload and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    torch.manual_seed(0)
    clock = ColdClock()
    bandwidth = read_bandwidth(clock)
    print(f"{torch.cuda.get_device_name()}, read bandwidth {bandwidth / 1e9:,.0f} GB/s")
    rows = [measure(work, clock, bandwidth) for work in WORKLOADS]
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps({"read_bandwidth": bandwidth, "rows": rows}, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
