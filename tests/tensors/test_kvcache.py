from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedbench.layout.build import build_layout
from pagedbench.tensors.kvcache import PagedKVCache
from pagedbench.tensors.pool import PoolShape, allocate
from tests.tensors.cells import POOL_LAYOUTS, scenario

HEADS, DIM, SIZE = 2, 16, 32


def empty_cache(name: str, blocks: int = 4) -> PagedKVCache:
    pool = allocate(PoolShape(blocks, SIZE, HEADS, DIM, DIM, torch.bfloat16, POOL_LAYOUTS[name]), "cpu")
    return PagedKVCache(pool.k, pool.v)


@pytest.mark.parametrize("name", POOL_LAYOUTS)
def test_an_update_writes_first_and_gathers_after(name: str) -> None:
    cache = empty_cache(name)
    old, new = torch.randn(2, HEADS, DIM).bfloat16(), torch.randn(1, HEADS, DIM).bfloat16()
    cache.write(old, -old, torch.tensor([64, 65]))
    k, v = cache.update(new, -new, torch.tensor([3]), torch.tensor([64, 65, 3]))
    assert torch.equal(k, torch.cat([old, new]))
    assert torch.equal(v, -torch.cat([old, new]))
    assert k.is_contiguous()


def test_gathering_as_many_keys_again_uses_the_same_memory() -> None:
    cache = empty_cache("contiguous NHD")
    first = cache.gather(torch.tensor([1, 2]))[0].data_ptr()
    assert cache.gather(torch.tensor([5, 6]))[0].data_ptr() == first
    assert cache.gather(torch.tensor([1]))[0].shape[0] == 1


@given(st.permutations(range(2 * SIZE)), st.sampled_from(sorted(POOL_LAYOUTS)))
@settings(max_examples=20, deadline=None)
def test_whatever_is_written_by_slot_is_gathered_by_slot(order: list[int], name: str) -> None:
    cache = empty_cache(name, blocks=2)
    slots = torch.tensor(order)
    rows = torch.randn(len(order), HEADS, DIM).bfloat16()
    cache.write(rows, rows + 1, slots)
    k, v = cache.gather(torch.arange(2 * SIZE))
    assert torch.equal(k[slots], rows)
    assert torch.equal(v[slots], rows + 1)


class TestBesideTransformers:
    """The cache of transformers 5.17 on the same batches: same indices up to block names, same gathered keys."""

    BLOCKS = 40

    def theirs(self, block_size: int):  # type: ignore[no-untyped-def]
        pytest.importorskip("transformers")
        from transformers import LlamaConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
        from transformers.generation.continuous_batching.distributed import DistributedHelper

        model = LlamaConfig(
            hidden_size=64, num_attention_heads=4, num_key_value_heads=HEADS, head_dim=DIM, num_hidden_layers=1
        )
        config = ContinuousBatchingConfig(
            block_size=block_size,
            num_blocks=self.BLOCKS,
            max_batch_tokens=64,
            allow_block_sharing=False,
            max_memory_percent=0.9,
        )
        return PagedAttentionCache(model, config, "cpu", DistributedHelper(None, None), {}, torch.float32)

    @given(
        st.integers(4, 9),
        st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=4),
        st.integers(0, 1000),
    )
    @settings(max_examples=15, deadline=None)
    def test_same_indices_and_same_gathered_tensors(
        self, block_size: int, lengths: list[tuple[int, int]], seed: int
    ) -> None:
        theirs = self.theirs(block_size)
        cached, queries = (tuple(column) for column in zip(*lengths, strict=True))
        wanted = scenario(
            queries, cached, heads=(4, HEADS), head_dim=DIM, dtype="float32", cache={"block_size": block_size}
        )
        layout = build_layout(wanted)
        total = layout.total_k
        generator = torch.Generator().manual_seed(seed)
        k, v = (torch.randn(total, HEADS, DIM, generator=generator) for _ in range(2))

        read: list[list[int]] = [[]]
        write: list[list[int]] = [[]]
        history: list[list[int]] = [[]]
        for sequence, (past, new) in enumerate(lengths):
            name = f"sequence {sequence}"
            assert theirs.allocate_blocks(-(-(past + new) // block_size), name, 0) is not None
            if past:
                theirs.extend_read_and_write_indices(name, 0, past, None, history)
            theirs.extend_read_and_write_indices(name, past, new, read, write)

        naming = dict(zip(layout.read_slots.tolist(), read[0], strict=True))
        assert [naming[slot] for slot in layout.write_slots.tolist()] == write[0]
        blocks = {(ours // block_size, other // block_size) for ours, other in naming.items()}
        assert all(ours % block_size == other % block_size for ours, other in naming.items())
        assert len(blocks) == len({ours for ours, _ in blocks}) == len({other for _, other in blocks})

        position = torch.arange(total) - torch.from_numpy(layout.cu_seqlens_k[:-1].repeat(layout.total_seqlens))
        is_new = position >= torch.from_numpy(layout.cache_seqlens.repeat(layout.total_seqlens))
        old_keys, new_keys = (~is_new).nonzero().flatten(), is_new.nonzero().flatten()

        def with_theirs() -> tuple[torch.Tensor, torch.Tensor]:
            for cache, rows in ((theirs.key_cache[0], k), (theirs.value_cache[0], v)):
                cache.index_copy_(0, torch.tensor(history[0], dtype=torch.int64), rows[old_keys])
            states = (t[new_keys].transpose(0, 1)[None] for t in (k, v))
            return theirs.update(*states, 0, [torch.tensor(read[0])], [torch.tensor(write[0])])

        pool = allocate(
            PoolShape(layout.num_blocks, block_size, HEADS, DIM, DIM, torch.float32, POOL_LAYOUTS["contiguous NHD"]),
            "cpu",
        )
        ours = PagedKVCache(pool.k, pool.v)
        read_slots, write_slots = torch.from_numpy(layout.read_slots), torch.from_numpy(layout.write_slots)
        ours.write(k[old_keys], v[old_keys], read_slots[old_keys])
        ours_k, ours_v = ours.update(k[new_keys], v[new_keys], write_slots, read_slots)
        theirs_k, theirs_v = with_theirs()
        assert torch.equal(ours_k, theirs_k)
        assert torch.equal(ours_v, theirs_v)
        assert torch.equal(ours_k, k)
