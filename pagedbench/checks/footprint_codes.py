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
from pagedbench.tensors.identity import kept
from pagedbench.tensors.inputs import LogicalInputs, unify_shared
from pagedbench.tensors.transfer import all_to_device, to_device

LEVELS = 4
"""Codes are differences of `LEVELS` even or odd steps, so their magnitude is at most 2 * LEVELS - 1."""


@dataclass(frozen=True)
class Rows:
    """What every row sees, on the device: `start`, `stop` `(total_q,)` index the logical keys of the whole batch.

    `live` `(total_q,)` bool leaves out padding rows, None where there are none. `some_blind`: rows that see no key.
    """

    start: torch.Tensor
    stop: torch.Tensor
    live: torch.Tensor | None
    some_blind: bool


def rows_of(layout: BatchLayout, device: torch.device | str) -> Rows:
    """The rows of a layout; the last few are kept."""
    return _rows_of(layout, torch.device(device))


@kept(4)
def _rows_of(layout: BatchLayout, device: torch.device) -> Rows:
    sequence = layout.row_sequence()
    offset = layout.cu_seqlens_k[:-1].astype(np.int64)[sequence]
    live = ~layout.dead[sequence]
    start, stop, sent = all_to_device([layout.visible_from + offset, layout.visible_to + offset, live], device)
    some_blind = bool((layout.visible_from == layout.visible_to).any())
    return Rows(start, stop, None if live.all() else sent.bool(), some_blind)


def key_positions(layout: BatchLayout) -> np.ndarray:
    """`(total_k,)` the place of each logical key in its sequence."""
    starts = layout.cu_seqlens_k[:-1].astype(np.int64)
    return np.arange(layout.total_k) - np.repeat(starts, layout.total_seqlens)


def included_keys(layout: BatchLayout, heads: int, generator: torch.Generator) -> torch.Tensor:
    """`(total_k, heads)` bool: a random half of the keys, and enough of the others that every row sees one."""
    drawn = torch.randint(0, 2, (layout.total_k, heads), generator=generator, device=generator.device, dtype=torch.int8)
    return _shared(drawn.view(torch.bool) | _anchors(layout, generator.device)[:, None], layout)


@kept(4)
def _anchors(layout: BatchLayout, device: torch.device) -> torch.Tensor:
    """`(total_k,)` bool: keys of which every row sees one.

    Ranges that begin at key 0 contain key 0; the others contain a multiple of the shortest one's length.
    """
    late = layout.visible_to - layout.visible_from
    late = late[(layout.visible_from > 0) & (late > 0)]
    stride = int(late.min()) if len(late) else max(1, layout.max_seqlen_k)
    return to_device(key_positions(layout) % stride == 0, device)


def sum_codes(
    included: torch.Tensor | None, shape: tuple[int, int, int], layout: BatchLayout, generator: torch.Generator
) -> torch.Tensor:
    """`shape` = `(total_k, heads, channels)` int8 odd codes of magnitude up to 7; those of included keys telescope.

    `included` `(total_k, heads)` bool; None for all.
    """
    keys, heads, channels = shape
    level = torch.randint(
        0, LEVELS, (keys + 1, heads, channels), generator=generator, device=generator.device, dtype=torch.int8
    ).mul_(2)
    level[1::2] += 1
    if included is None:
        return _shared(level[1:] - level[:-1], layout)
    # Along contiguous memory: along the first dimension a GPU has one thread a column walk through all keys.
    rank = torch.cumsum(included.t().contiguous(), 1, dtype=torch.int64).t()
    after = level.gather(0, rank[..., None].expand(shape))
    before = level.gather(0, (rank - 1).clamp_(min=0)[..., None].expand(shape))
    return _shared(torch.where(included[..., None], after - before, odd_codes(shape, generator)), layout)


def odd_codes(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Random odd int8 codes from −7 to 7, for what must not be read."""
    drawn = torch.randint(0, 2 * LEVELS, shape, generator=generator, device=generator.device, dtype=torch.int8)
    return drawn.mul_(2).sub_(2 * LEVELS - 1)


def expected_sums(codes: torch.Tensor, included: torch.Tensor, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row and KV head the sum of its codes `(total_q, heads, channels)` and its included keys `(total_q,
    heads)`, int32."""
    keys, heads, channels = codes.shape
    # Keys last, where a GPU sums fast, and a zero before them; the number of keys is one more channel.
    values = codes.new_zeros(heads, channels + 1, keys + 1)
    torch.mul(codes.permute(1, 2, 0), included.t()[:, None], out=values[:, :channels, 1:])
    values[:, channels, 1:] = included.t()
    running = torch.cumsum(values, 2, dtype=torch.int32)
    found = (running.index_select(2, rows.stop) - running.index_select(2, rows.start)).permute(2, 0, 1)
    return found[..., :channels], found[..., channels]


def _shared(values: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
    """One value for all keys that live in one slot."""
    carried = values.view(torch.int8) if values.dtype is torch.bool else values
    same = unify_shared(LogicalInputs(carried, carried, carried), layout).k
    return same.view(torch.bool) if values.dtype is torch.bool else same
