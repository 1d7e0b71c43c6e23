"""A plain right kernel, and the public bug reports planted in it: one class a fault, each changing one step.

Given to pagedbench as a user would: `--backend kernels.py:Ids16Bits`. Everything is written out in torch, one sequence
after the other in fp32, so that one sees what is right and what is not. Names of the arguments are those of `Call`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

import pagedbench


class Right:
    """Attention through the block table; appends in place; bottom-right causal; windows inclusive at both ends."""

    def __init__(self, call: Any) -> None:
        self.call, self.spec = call, call.spec
        self.block_size = self.spec.block_size
        self.table = call.block_table.long()
        self.lengths = call.total_seqlens.tolist()
        self.starts = call.cu_seqlens_q.tolist()

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """`(out, lse)` of the whole batch."""
        if self.call.k_new is not None:
            self.append()
        out = self.memory()
        lse = torch.empty(out.shape[:2])
        for sequence in range(self.spec.batch):
            start, stop = self.starts[sequence : sequence + 2]
            k, v = self.keys(sequence)
            for token in range(start, stop):
                seen = self.seen(token - start, stop - start, len(k))
                row, lse[token] = self.attend(self.call.q[token].float(), k, v, seen)
                if row is not None:
                    out[self.place(sequence, token)] = row.to(out.dtype)
        return out, lse

    def memory(self) -> torch.Tensor:
        """Where the output goes."""
        return self.call.out

    def place(self, sequence: int, token: int) -> int:
        """The row of the output that a query token's result is written to."""
        return token

    def append(self) -> None:
        """Write the new tokens behind the cached ones."""
        for sequence, before in enumerate(self.call.cache_seqlens.tolist()):
            start, stop = self.starts[sequence : sequence + 2]
            for i, token in enumerate(range(start, stop)):
                block, offset = divmod(before + i, self.block_size)
                self.call.k_cache[self.table[sequence, block], offset] = self.call.k_new[token]
                self.call.v_cache[self.table[sequence, block], offset] = self.call.v_new[token]

    def blocks(self, sequence: int) -> torch.Tensor:
        """Ids of the blocks that hold a sequence's keys."""
        return self.table[sequence, : -(-self.lengths[sequence] // self.block_size)]

    def keys(self, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a sequence in fp32, `(keys, num_heads, head_dim[_v])`."""
        blocks, length = self.blocks(sequence), self.lengths[sequence]
        gathered = (cache[blocks].flatten(0, 1)[:length] for cache in (self.call.k_cache, self.call.v_cache))
        k, v = (t.float().repeat_interleave(self.spec.group_size, 1) for t in gathered)
        return k, v

    def seen(self, i: int, query_len: int, length: int) -> torch.Tensor:
        """`(length,)` bool: the keys that query token `i` of `query_len` sees."""
        position, key = length - query_len + i, torch.arange(length)
        left, right = self.spec.window_size
        seen = key <= position if self.spec.causal else torch.ones(length, dtype=torch.bool)
        if left >= 0:
            seen &= key >= position - left
        if right >= 0:
            seen &= key <= position + right
        return seen

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Output `(num_heads, head_dim_v)` and LSE `(num_heads,)` of one query token; None leaves the row alone."""
        if not bool(seen.any()):
            return torch.zeros(len(q), v.shape[2]), torch.full((len(q),), -torch.inf)
        scores = torch.einsum("hd,khd->hk", q, k[seen]) * self.spec.softmax_scale
        return torch.einsum("hk,khd->hd", scores.softmax(-1), v[seen]), scores.logsumexp(-1)


Kernel = Callable[..., Any]


def on(path: str, returns_lse: bool = True, **traits: Any) -> Callable[[type[Right]], Kernel]:
    """Make a user's function of a class, as a file given to `--backend` holds them."""

    def declare(kind: type[Right]) -> Kernel:
        @pagedbench.backend(path, returns_lse=returns_lse, **traits)
        def kernel(call: Any, k_new: Any, v_new: Any) -> Any:
            out, lse = kind(call).run()
            return (out, lse) if returns_lse else out

        return kernel

    return declare


right_decode = on("decode")(Right)
right_paged_varlen = on("paged-varlen")(Right)


@on("paged-varlen")
class CombineToRow0(Right):
    """H1: with KV split, the combine step has a batch stride of zero."""

    def place(self, sequence: int, token: int) -> int:
        return token - self.starts[sequence] if self.spec.num_splits > 1 else token


@on("paged-varlen")
class CombineToRow0OfItsOwnMemory(Right):
    """H1, in a library that allocates its output: rows that nobody writes hold what was there."""

    def memory(self) -> torch.Tensor:
        return torch.empty_like(self.call.out)

    def place(self, sequence: int, token: int) -> int:
        return token - self.starts[sequence] if self.spec.num_splits > 1 else token


@on("decode")
class Ids16Bits(Right):
    """H2: block ids are cut to 16 bits where they are read."""

    def blocks(self, sequence: int) -> torch.Tensor:
        return super().blocks(sequence) & 0xFFFF


@on("decode")
class BlockTailDropped(Right):
    """H3: tiles of 128 in a block, counted by integer division; the rest of each block is never visited."""

    def seen(self, i: int, query_len: int, length: int) -> torch.Tensor:
        visited = torch.arange(length) % self.block_size < self.block_size // 128 * 128
        return super().seen(i, query_len, length) & visited


@on("decode")
class BlockStrideAssumed(Right):
    """H4: the stride from block to block is rebuilt from the block size, heads and head dim."""

    def keys(self, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        stride = self.block_size * self.spec.num_kv_heads * self.spec.head_dim
        caches = self.call.k_cache, self.call.v_cache
        self.call.k_cache, self.call.v_cache = (
            cache.as_strided(cache.shape, (stride, *cache.stride()[1:])) for cache in caches
        )
        keys = super().keys(sequence)
        self.call.k_cache, self.call.v_cache = caches
        return keys


@on("decode")
class TilePastTheTable(Right):
    """H5: a tile takes one table entry more than there are blocks, wherever that lies, and follows it."""

    def blocks(self, sequence: int) -> torch.Tensor:
        table, needed = self.call.block_table, len(super().blocks(sequence))
        row = table.as_strided((needed + 1,), (1,), table.storage_offset() + sequence * table.stride(0))
        return row.long()


@on("decode")
class UnmappedEntriesFollowed(Right):
    """H7: every table entry is taken as unsigned and becomes an address, needed or not."""

    def keys(self, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        unsigned = self.table[sequence] & 0xFFFFFFFF
        self.call.k_cache[unsigned]
        return super().keys(sequence)


@on("paged-varlen")
class ReshapedByBatch(Right):
    """H8: where the longest query has one token, queries are reshaped by the batch size."""

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.call.max_seqlen_q == 1:
            self.call.q.view(self.spec.batch, 1, self.spec.num_heads, self.spec.head_dim)
        return super().run()


def _multiple_of_256(spec: Any) -> str | None:
    return f"block size {spec.block_size} is not supported (needs a multiple of 256)" if spec.block_size % 256 else None


@on("decode")
class Only256(Right):
    """H9: a library that takes multiples of 256 only, and raises for others."""

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.block_size % 256:
            raise RuntimeError("Paged KV cache block size must be divisible by 256")
        return super().run()


@on("decode", unsupported=_multiple_of_256)
class Only256Declared(Right):
    """H9: the same library behind an adapter that says so."""


@on("decode")
class TailMultipliedByZero(Right):
    """H10: whole blocks are multiplied by weights that are zero where they are masked; 0 * NaN is NaN."""

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.valid = self.lengths
        self.lengths = [-(-length // self.block_size) * self.block_size for length in self.lengths]
        return super().run()

    def keys(self, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.length = self.valid[sequence]
        return super().keys(sequence)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        scores = torch.einsum("hd,khd->hk", q, k) * self.spec.softmax_scale
        scores = scores.masked_fill(torch.arange(len(k)) >= self.length, -torch.inf)
        return torch.einsum("hk,khd->hd", scores.softmax(-1), v), scores.logsumexp(-1)


class _Empty(Right):
    """What is done where a row sees no key."""

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        return super().attend(q, k, v, seen) if bool(seen.any()) else self.empty(len(q), v.shape[2])

    def empty(self, heads: int, dim: int) -> tuple[torch.Tensor | None, torch.Tensor]:
        raise NotImplementedError


@on("paged-varlen")
class FiniteLseOfEmptyRows(_Empty):
    """H11: rows that see no key have a finite log-sum-exp, which a later merge takes for real."""

    def empty(self, heads: int, dim: int) -> tuple[torch.Tensor | None, torch.Tensor]:
        return torch.zeros(heads, dim), torch.full((heads,), -1e30)


@on("decode")
class EmptyRowsDividedByZero(_Empty):
    """H12: the running sum is divided by without a look at whether it is zero."""

    def empty(self, heads: int, dim: int) -> tuple[torch.Tensor | None, torch.Tensor]:
        return torch.zeros(heads, dim) / torch.zeros(heads, 1), torch.full((heads,), -torch.inf)


class _EmptyRowsUntouched(_Empty):
    """H12: rows that see no key are skipped; what was in memory shows through."""

    def empty(self, heads: int, dim: int) -> tuple[torch.Tensor | None, torch.Tensor]:
        return None, torch.full((heads,), -torch.inf)


EmptyRowsUntouched = on("decode")(_EmptyRowsUntouched)
EmptyRowsUntouchedDeclared = on("decode", empty_rows="untouched")(_EmptyRowsUntouched)


class _SplitsByBatch(Right):
    """H13: the number of KV splits comes from the whole batch, so the order of summation does."""

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        splits = self.spec.num_splits or max(1, 8 // self.spec.batch)
        parts = [super(_SplitsByBatch, self).attend(q, k, v, part & seen) for part in self.parts(splits, len(k))]
        lse = torch.stack([part_lse for _, part_lse in parts])
        rounded = torch.stack([out.to(self.call.q.dtype).float() for out, _ in parts if out is not None])
        return (rounded * lse.softmax(0)[..., None]).sum(0), lse.logsumexp(0)

    @staticmethod
    def parts(splits: int, length: int) -> list[torch.Tensor]:
        split = torch.arange(length) * splits // max(length, 1)
        return [split == number for number in range(splits)]


SplitsByBatch = on("decode")(_SplitsByBatch)
SplitsByBatchDeclaredInvariant = on("decode", batch_invariant=True)(_SplitsByBatch)


@on("decode")
class AppendPastThePool(Right):
    """H15: the last new token lands one row past the end of the cache, in whatever is there."""

    def append(self) -> None:
        caches = self.call.k_cache, self.call.v_cache
        kept = [cache[self.last_slot()].clone() for cache in caches]
        super().append()
        for cache, new, old in zip(caches, (self.call.k_new, self.call.v_new), kept, strict=True):
            cache[self.last_slot()] = old
            past = cache.as_strided((old.numel(),), (1,), cache.storage_offset() + cache.numel())
            past.copy_(new[-1].flatten())

    def last_slot(self) -> tuple[int, int]:
        block, offset = divmod(self.lengths[-1] - 1, self.block_size)
        return int(self.table[-1, block]), offset


@on("paged-varlen")
class CausalTopLeft(Right):
    """H16: the causal mask is aligned to the top left."""

    def seen(self, i: int, query_len: int, length: int) -> torch.Tensor:
        return torch.arange(length) <= i


@on("decode")
class WindowOneWide(Right):
    """H17: `<=` where `<` belongs: a window of W keys has W + 1."""

    def seen(self, i: int, query_len: int, length: int) -> torch.Tensor:
        position, key = length - query_len + i, torch.arange(length)
        left = self.spec.window_size[0]
        return (key <= position) & (position - key <= left + 1) if left >= 0 else key <= position


@on("decode")
class WindowOneNarrow(Right):
    """H17, to the other side."""

    def seen(self, i: int, query_len: int, length: int) -> torch.Tensor:
        position, key = length - query_len + i, torch.arange(length)
        left = self.spec.window_size[0]
        return (key <= position) & (position - key < left) if left >= 0 else key <= position


def words_of(indices: torch.Tensor) -> torch.Tensor:
    """An index tensor as a kernel reads it that expects int32 and does not look."""
    return indices.view(torch.int32).flatten()[: indices.numel()].view(indices.shape)


@on("decode")
class TableWordsMisread(Right):
    """H18: the words of an int64 block table are read as int32."""

    def __init__(self, call: Any) -> None:
        super().__init__(call)
        self.table = words_of(call.block_table).long().clamp(min=0)


@on("decode")
class LengthWordsMisread(Right):
    """H18: the words of int64 lengths are read as int32, so every other sequence is empty."""

    def __init__(self, call: Any) -> None:
        super().__init__(call)
        self.lengths = words_of(call.total_seqlens).tolist()


def _refuse_int64(spec: Any) -> str | None:
    wrong = ", ".join(f"{name} is {dtype}" for name, dtype in spec.index_dtypes.items())
    return f"{wrong}: needs int32" if wrong else None


@on("decode", unsupported=_refuse_int64)
class RefusesInt64(Right):
    """H18: a library that takes int32 only and says so."""


@on("decode", returns_lse=False)
class MeanOfV(Right):
    """H20: every key has the same weight."""

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        return super().attend(torch.zeros_like(q), k, v, seen)


@on("decode")
class AllZeros(Right):
    """H20: nothing is computed."""

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().run()
        return out.zero_(), lse


@on("decode")
class RandomNumbers(Right):
    """H20: numbers in the range of V, with no relation to the question."""

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().run()
        return out.copy_(torch.rand(out.shape) / 2 + 0.5), lse


@on("decode")
class BlocksPermuted(Right):
    """H20: a sequence's blocks in another order; with no mask inside full blocks only the tail tells."""

    def blocks(self, sequence: int) -> torch.Tensor:
        return super().blocks(sequence).roll(1)


@on("decode")
class Moody(Right):
    """H22: ends the process with eight heads, never returns with sixteen, else it is right."""

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.spec.num_heads == 8:
            os.abort()
        while self.spec.num_heads == 16:
            time.sleep(0.05)
        return super().run()
