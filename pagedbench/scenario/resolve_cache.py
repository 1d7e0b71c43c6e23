"""The cache section: pool sizes that can be, and memory layouts whose strides do not fold tokens onto each other."""

from __future__ import annotations

from pagedbench.scenario.document import CacheSection, LayoutSection, StrideSection
from pagedbench.scenario.model import Attention, Batch, Cache, PoolLayout
from pagedbench.scenario.refusals import Refusals

# Integers that pagedbench itself would have to hold, whatever the pool's memory.
MAX_BLOCKS = 2**22
MAX_SLOTS = 2**30
MAX_TABLE_ENTRIES = 2**26
# The ids that `high-ids` uses are a little above it.
HIGH_IDS = 2**17


def resolve_cache(section: CacheSection, batch: Batch, attention: Attention, refusals: Refusals) -> Cache | None:
    """The cache with short forms resolved; None where something is refused."""
    before = len(refusals.problems)
    _check_sizes(section, batch, refusals)
    _check_table(section, refusals)
    layout = _layout(section, attention, refusals)
    if len(refusals.problems) > before:
        return None
    table = section.block_table
    return Cache(
        block_size=section.block_size,
        max_blocks_per_seq=section.max_blocks_per_seq,
        num_blocks=section.num_blocks,
        block_table=None if table is None else tuple(tuple(row) for row in table),
        placement=section.placement or "shuffled",
        padding=section.padding,
        trash_block=section.trash_block,
        layout=layout,
    )


def _check_sizes(section: CacheSection, batch: Batch, refusals: Refusals) -> None:
    totals = (c + (q if batch.append else 0) for q, c in zip(batch.query_lens, batch.cached_lens, strict=True))
    blocks = sum(-(-total // section.block_size) for total in totals)
    if blocks > MAX_BLOCKS:
        found = f"{section.block_size}, which makes {blocks:,} blocks of this batch"
        refusals.add("cache.block_size", found, f"at most {MAX_BLOCKS:,} blocks")
    if section.placement == "high-ids" and section.block_size * HIGH_IDS > MAX_SLOTS:
        found = f"high-ids with blocks of {section.block_size:,} slots"
        refusals.add("cache.placement", found, f"blocks of at most {MAX_SLOTS // HIGH_IDS:,} slots")
    slots = (section.num_blocks or 0) * section.block_size
    if slots > MAX_SLOTS:
        found = f"{section.num_blocks:,} blocks of {section.block_size:,} slots"
        refusals.add("cache.num_blocks", found, f"at most {MAX_SLOTS:,} slots")
    columns = section.max_blocks_per_seq
    if isinstance(columns, int) and columns * max(1, batch.size) > MAX_TABLE_ENTRIES:
        found = f"{columns:,} columns for {batch.size:,} sequences"
        refusals.add("cache.max_blocks_per_seq", found, f"at most {MAX_TABLE_ENTRIES:,} entries in the table")


def _check_table(section: CacheSection, refusals: Refusals) -> None:
    if section.block_table is not None and section.placement is not None:
        refusals.add("cache.placement", "placement beside block_table", "one of the two forms")


def _layout(section: CacheSection, attention: Attention, refusals: Refusals) -> PoolLayout:
    given = section.layout
    if isinstance(given, str):
        return PoolLayout(form=given)
    if given.k_stride is None and given.v_stride is None:
        return PoolLayout(order=given.order, form=given.form)
    if "form" in given.model_fields_set:
        refusals.add("cache.layout.form", "form beside strides", "one of the two forms")
    k_stride = _strides("k_stride", given.k_stride, given, section.block_size, attention, attention.head_dim, refusals)
    v_stride = _strides(
        "v_stride", given.v_stride, given, section.block_size, attention, attention.head_dim_v, refusals
    )
    return PoolLayout(order=given.order, form="strided", k_stride=k_stride, v_stride=v_stride)


def _strides(
    name: str,
    strides: StrideSection | None,
    layout: LayoutSection,
    block_size: int,
    attention: Attention,
    head_dim: int,
    refusals: Refusals,
) -> tuple[int, int] | None:
    """(block, token), refused where two tokens would overlap."""
    if strides is None:
        return None
    in_token = head_dim if layout.order == "HND" else head_dim * attention.num_kv_heads
    if strides.token < in_token:
        refusals.add(f"cache.layout.{name}.token", f"{strides.token:,}", f"at least {in_token:,}, or tokens overlap")
        return None
    rows = block_size * attention.num_kv_heads if layout.order == "HND" else block_size
    in_block = (rows - 1) * strides.token + in_token
    if strides.block < in_block:
        refusals.add(f"cache.layout.{name}.block", f"{strides.block:,}", f"at least {in_block:,}, or blocks overlap")
        return None
    return strides.block, strides.token
