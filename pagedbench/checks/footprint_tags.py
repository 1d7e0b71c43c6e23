"""Tagged calls of the footprint: one channel a group of slots, so that the output *is* the list of what was read.

`TagProbe` measures, for the rows of one sequence, how often each group of slots was read. Which groups to ask for, and
what the answer means, is `footprint_locate.py`'s business. Counts are decoded, bits never compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pagedbench.checks.base import CheckContext
from pagedbench.checks.footprint_calls import CodedCall, Coding, run_coded
from pagedbench.layout.regions import Region, slot_regions

NO_TAG = -1
# A count this large still survives two roundings to bf16 with less than half a count of error.
LARGEST_COUNT = 64


@dataclass
class TagProbe:
    """Tagged calls for the rows `rows` (query tokens) of one sequence, with the K of a coded call (`included`)."""

    context: CheckContext
    included: torch.Tensor
    coding: Coding
    rows: torch.Tensor
    calls: int = 0

    @property
    def channels(self) -> int:
        """Tags that fit into one call; the last channel is the mark of slots that are about to be appended to."""
        return self.context.scenario.attention.head_dim_v - 1

    def no_tags(self) -> np.ndarray:
        """`(slots,)` of NO_TAG, to be filled in."""
        layout = self.context.layout
        return np.full(layout.num_blocks * layout.block_size, NO_TAG, dtype=np.int64)

    def fractions(self, tags: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Run with `tags` `(slots,)`: the share of each row's mass by tag, `(rows, num_heads, channels + 1)` float64,
        and
        the LSE `(rows, num_heads)`. The last tag is what NEW slots hold before the append."""
        context, spec = self.context, self.context.scenario.attention
        on_device = torch.from_numpy(tags).to(context.device)
        new = torch.from_numpy(slot_regions(context.layout) == Region.NEW).to(context.device)
        stale = torch.where(new, self.channels, on_device)
        slots = torch.from_numpy(context.layout.read_slots).to(context.device)
        heads = spec.num_kv_heads
        key_tags = torch.where(slots >= 0, on_device[slots.clamp(min=0)], NO_TAG) if len(tags) else slots
        call = CodedCall(
            context.layout.total_q,
            self._one_hot(key_tags, heads),
            self.included,
            lambda at: self._one_hot(stale[at], heads),
            None,
        )
        output = run_coded(context, call, self.coding)
        self.calls += 1
        unit = self.coding.amplitude * spec.v_scale
        shares = (output.out[self.rows].double() / unit).cpu().numpy()
        return shares, None if output.lse is None else output.lse[self.rows].double().cpu().numpy()

    def _one_hot(self, tags: torch.Tensor, heads: int) -> torch.Tensor:
        channels = self.channels + 1
        hot = torch.zeros(len(tags), channels, dtype=torch.int8, device=tags.device)
        hot[(tags >= 0).nonzero()[:, 0], tags[tags >= 0]] = 1
        return hot[:, None].expand(-1, heads, -1)
