"""All index arrays of a batch as plain numbers and lists: what `show --json` prints, in full."""

from __future__ import annotations

from typing import Any

from pagedbench.layout.batch import BatchLayout
from pagedbench.scenario.model import Scenario

# Our name -> the name in the paged attention guide or in the code that it documents.
GUIDE_NAMES = {
    "cu_seqlens_q": "cu_seq_lens_q",
    "cu_seqlens_k": "cu_seq_lens_k",
    "max_seqlen_q": "max_length_q",
    "max_seqlen_k": "max_length_k",
    "cache_seqlens": "cache_seqlens",
    "block_table": "block_table",
    "write_slots": "write_index",
    "read_slots": "read_index",
}
_ARRAYS = (
    "query_lens",
    "cache_seqlens",
    "total_seqlens",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "block_table",
    "needed_blocks",
    "write_slots",
    "read_slots",
    "visible_from",
    "visible_to",
    "dead",
)
_NUMBERS = ("max_seqlen_q", "max_seqlen_k", "block_size", "num_blocks", "max_blocks_per_seq", "append", "trash_block")


def shapes(scenario: Scenario, layout: BatchLayout) -> dict[str, list[int]]:
    """Shapes of the varlen path's inputs as the guide writes them, with a leading 1, and of the pool."""
    attention = scenario.attention
    pool = [layout.num_blocks, layout.block_size, attention.num_kv_heads]
    return {
        "q": [1, layout.total_q, attention.num_heads, attention.head_dim],
        "k": [1, layout.total_k, attention.num_kv_heads, attention.head_dim],
        "v": [1, layout.total_k, attention.num_kv_heads, attention.head_dim_v],
        "k_cache": [*pool, attention.head_dim],
        "v_cache": [*pool, attention.head_dim_v],
    }


def as_dict(scenario: Scenario, layout: BatchLayout) -> dict[str, Any]:
    """Everything about the batch that is an index, ready for JSON."""
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        **{name: getattr(layout, name) for name in _NUMBERS},
        **{name: getattr(layout, name).tolist() for name in _ARRAYS},
        "shapes": shapes(scenario, layout),
        "guide_names": GUIDE_NAMES,
    }
