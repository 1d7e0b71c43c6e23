"""Codes for the footprint: small odd numbers in V whose sum over what a row must read is small and known.

A row's exact sum is known, so a wrong set of slots shows as another sum in some channel; and since the sum is small
whatever the length (it telescopes along the keys), it survives rounding to the output's dtype at any length.
Nothing is run here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pagedbench.layout.batch import BatchLayout
from pagedbench.tensors.inputs import LogicalInputs, unify_shared
from pagedbench.tensors.transfer import all_to_device, to_device

LEVELS = 4
"""Codes are differences of `LEVELS` even or odd steps, so their magnitude is at most 2 * LEVELS - 1."""


@dataclass(frozen=True)
class Rows:
    """What every row sees, on the device: `start`, `stop` `(total_q,)` index the logical keys of the whole batch.

    `sequence` `(total_q,)`; `live` `(total_q,)` bool leaves out padding rows.
    """

    sequence: torch.Tensor
    start: torch.Tensor
    stop: torch.Tensor
    live: torch.Tensor

    @property
    def count(self) -> torch.Tensor:
        """`(total_q,)` keys each row sees."""
        return self.stop - self.start


def rows_of(layout: BatchLayout, device: torch.device | str) -> Rows:
    """The rows of a layout."""
    sequence = layout.row_sequence()
    offset = layout.cu_seqlens_k[:-1].astype(np.int64)[sequence]
    live = ~layout.dead[sequence]
    arrays = [sequence, layout.visible_from + offset, layout.visible_to + offset, live]
    sent = all_to_device(arrays, device)
    return Rows(sent[0], sent[1], sent[2], sent[3].bool())


def key_positions(layout: BatchLayout) -> np.ndarray:
    """`(total_k,)` the place of each logical key in its sequence."""
    starts = layout.cu_seqlens_k[:-1].astype(np.int64)
    return np.arange(layout.total_k) - np.repeat(starts, layout.total_seqlens)


def included_keys(layout: BatchLayout, heads: int, generator: torch.Generator) -> torch.Tensor:
    """`(total_k, heads)` bool: a random half of the keys, and enough of the others that every row sees one.

    Ranges that begin at key 0 contain key 0; the others contain a multiple of the shortest one's length.
    """
    device = generator.device
    late = layout.visible_to - layout.visible_from
    late = late[(layout.visible_from > 0) & (late > 0)]
    stride = int(late.min()) if len(late) else max(1, layout.max_seqlen_k)
    chosen = torch.randint(0, 2, (layout.total_k, heads), generator=generator, device=device, dtype=torch.int8).bool()
    anchor = to_device(key_positions(layout) % stride == 0, device)
    return _shared(chosen | anchor[:, None], layout)


def sum_codes(included: torch.Tensor, channels: int, layout: BatchLayout, generator: torch.Generator) -> torch.Tensor:
    """`(total_k, heads, channels)` int8 odd codes of magnitude up to 7; those of included keys telescope."""
    keys, heads = included.shape
    shape = (keys + 1, heads, channels)
    steps = torch.randint(0, LEVELS, shape, generator=generator, device=generator.device, dtype=torch.int8)
    rank = _running(included.to(torch.int8)).long()
    level = steps.mul_(2).add_((torch.arange(keys + 1, device=steps.device) % 2).to(torch.int8)[:, None, None])
    index = rank[..., None].expand(-1, -1, channels)
    after, before = level.gather(0, index), level.gather(0, (index - 1).clamp_(min=0))
    loose = odd_codes((keys, heads, channels), generator) if not bool(included.all()) else after
    return _shared(torch.where(included[..., None], after - before, loose), layout)


def odd_codes(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Random odd int8 codes from −7 to 7, for what must not be read."""
    drawn = torch.randint(0, 2 * LEVELS, shape, generator=generator, device=generator.device, dtype=torch.int8)
    return drawn.mul_(2).sub_(2 * LEVELS - 1)


def expected_sums(codes: torch.Tensor, included: torch.Tensor, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row and KV head the sum of its codes `(total_q, heads, channels)` and its included keys `(total_q,
    heads)`."""
    weighted = codes * included[..., None]
    sums = _prefix(weighted)
    counts = _prefix(included.to(torch.int8))
    return sums[rows.stop] - sums[rows.start], counts[rows.stop] - counts[rows.start]


def _prefix(values: torch.Tensor) -> torch.Tensor:
    """Sums of the first i entries, i from 0, int32."""
    running = _running(values)
    return torch.cat([running.new_zeros(1, *values.shape[1:]), running])


def _running(values: torch.Tensor) -> torch.Tensor:
    """Sums of the first i entries, i from 1, int32.

    Along contiguous memory: along the first dimension a GPU has one thread a column walk through all keys.
    """
    columns = values.flatten(1).t().contiguous()
    return torch.cumsum(columns, 1, dtype=torch.int32).t().contiguous().view(values.shape)


def _shared(values: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
    """One value for all keys that live in one slot."""
    carried = values.view(torch.int8) if values.dtype is torch.bool else values
    same = unify_shared(LogicalInputs(carried, carried, carried), layout).k
    return same.view(torch.bool) if values.dtype is torch.bool else same
