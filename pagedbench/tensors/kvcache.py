"""`PagedKVCache`: the cache as the varlen path of an engine uses it. New tokens are written by slot, then every key of
the batch is gathered into contiguous tensors.

It knows slots, not sequences: which slot belongs to whom is the layout's. The pool's memory is someone else's too.
"""

from __future__ import annotations

import torch

from pagedbench.tensors.bits import bits
from pagedbench.tensors.pool import put_slots, take_slots


class PagedKVCache:
    """Write and gather by slot on a pool `k_cache`, `v_cache` `(num_blocks, block_size, num_kv_heads, head_dim[_v])`.

    The views may have any strides. Gathered tensors are kept and used again by the next gather of as many keys, so that
    a captured graph finds them at the same address.
    """

    def __init__(self, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
        self.k_cache = k_cache
        self.v_cache = v_cache
        self._gathered: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self,
        k_new: torch.Tensor,
        v_new: torch.Tensor,
        write_slots: torch.Tensor,
        read_slots: torch.Tensor,
        written: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new tokens, then gather: K and V `(len(read_slots), num_kv_heads, head_dim[_v])`, contiguous.

        `k_new`, `v_new` `(len(write_slots), num_kv_heads, head_dim[_v])`; slots are int64. `written`: as of `write`.
        """
        self.write(k_new, v_new, write_slots, written)
        return self.gather(read_slots)

    def write(
        self,
        k_new: torch.Tensor,
        v_new: torch.Tensor,
        write_slots: torch.Tensor,
        written: torch.Tensor | None = None,
    ) -> None:
        """Write new tokens into their slots: all, or those with the indices `written`, the others having the slot −1.

        Which these are is given and not looked for: that would wait for the device at each write.
        """
        if written is not None:
            write_slots = write_slots.index_select(0, written)
            k_new, v_new = (bits(new).index_select(0, written).view(new.dtype) for new in (k_new, v_new))
        put_slots(self.k_cache, write_slots, k_new)
        put_slots(self.v_cache, write_slots, v_new)

    def gather(self, read_slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy the keys and values of these slots, in this order."""
        if self._gathered is None or len(self._gathered[0]) != len(read_slots):
            self._gathered = (self._rows(self.k_cache, read_slots), self._rows(self.v_cache, read_slots))
        k, v = self._gathered
        _gather_into(k, self.k_cache, read_slots)
        _gather_into(v, self.v_cache, read_slots)
        return k, v

    @staticmethod
    def _rows(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        return torch.empty((len(slots), *cache.shape[2:]), dtype=cache.dtype, device=cache.device)


def _gather_into(target: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    raw = bits(cache)
    if raw.is_contiguous():
        torch.index_select(raw.flatten(0, 1), 0, slots, out=bits(target))
    else:
        bits(target).copy_(bits(take_slots(cache, slots)))
