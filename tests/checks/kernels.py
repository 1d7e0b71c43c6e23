"""A kernel so plain that one sees it is right, and ways to make it wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from pagedbench.backends.base import Availability, Backend, Output, Traits
from pagedbench.checks.base import CheckContext
from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.call import Call
from pagedbench.words import AttnPath

Tamper = Callable[[Call, Output], None]


class Plain(Backend):
    """One row at a time, in fp32, of the keys that the table names. Subclasses tamper with the result."""

    name = "plain"
    traits = Traits(repeatable=True, out=True)

    def __init__(self, tamper: Tamper | None = None, traits: Traits | None = None) -> None:
        self.calls = 0
        self._tamper = tamper
        if traits is not None:
            self.traits = traits

    def traits_for(self, path: AttnPath) -> Traits:
        """Only decode appends."""
        return self.traits if path is AttnPath.DECODE else replace(self.traits, appends=False)

    def available(self, device: str) -> Availability:
        return Availability(True)

    def varlen(self, call: Call, plan: Any) -> Output:
        assert call.k is not None
        assert call.v is not None
        starts = call.cu_seqlens_k.tolist()
        keys = [(call.k[a:b], call.v[a:b]) for a, b in pairwise(starts)]
        return self._finish(call, keys)

    def decode(self, call: Call, plan: Any) -> Output:
        if call.k_new is not None and call.v_new is not None:
            block, offset = call.write_slots // call.spec.block_size, call.write_slots % call.spec.block_size
            call.k_cache[block, offset] = call.k_new
            call.v_cache[block, offset] = call.v_new
        return self.paged_varlen(call, plan)

    def paged_varlen(self, call: Call, plan: Any) -> Output:
        keys = []
        for row, length in zip(call.block_table, call.total_seqlens.tolist(), strict=True):
            slots = torch.arange(length)
            block, offset = row[slots // call.spec.block_size].long(), slots % call.spec.block_size
            keys.append((call.k_cache[block, offset], call.v_cache[block, offset]))
        return self._finish(call, keys)

    def _finish(self, call: Call, keys: list[tuple[torch.Tensor, torch.Tensor]]) -> Output:
        self.calls += 1
        assert call.out is not None
        output = Output(call.out, torch.full(call.q.shape[:2], -torch.inf))
        starts = call.cu_seqlens_q.tolist()
        for (first, last), (k, v) in zip(pairwise(starts), keys, strict=True):
            for token in range(first, last):
                seen = len(k) - (last - 1 - token)
                output.out[token], output.lse[token] = self.row(
                    call, call.q[token], k[: max(seen, 0)], v[: max(seen, 0)]
                )  # type: ignore[index]
        if self._tamper is not None:
            self._tamper(call, output)
        return output

    def row(self, call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and LSE of one query token, all heads."""
        k, v = (t.float().repeat_interleave(call.spec.group_size, 1) for t in (k, v))
        scores = self.products(q.float(), k) * call.spec.softmax_scale
        if not len(k):
            return torch.zeros(len(q), v.shape[-1]), torch.full(q.shape[:1], -torch.inf)
        return self.softmax(scores, v)

    def products(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """`q·k`, `(heads, keys)`."""
        return torch.einsum("hd,khd->hk", q, k)

    def softmax(self, scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and LSE of scores `(heads, keys)` and values `(keys, heads, d)`."""
        lse = torch.logsumexp(scores, -1)
        return torch.einsum("hk,khd->hd", torch.exp(scores - lse[:, None]), v), lse


class RoundedSum(Plain):
    """Adds up the weights after it rounded them to bf16 for the product with V, as tensor cores make it cheap."""

    def softmax(self, scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        peak = scores.amax(-1, keepdim=True)
        weights = torch.exp(scores - peak).bfloat16().float()
        total = weights.sum(-1)
        return torch.einsum("hk,khd->hd", weights, v) / total[:, None], peak[:, 0] + total.log()


class ShortProducts(Plain):
    """Adds products of fp8 numbers with 14 bits, counted from the largest of them; the rest is cut off."""

    def products(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        products = q * k
        unit = 2.0 ** (products.abs().amax(-1, keepdim=True).clamp(min=1e-30).log2().floor() - 13)
        return ((products / unit).trunc() * unit).sum(-1).T


def context(wanted: Scenario, backend: Backend, path: AttnPath = AttnPath.DECODE, device: str = "cpu") -> CheckContext:
    return CheckContext(wanted, build_layout(wanted), backend, path, device)
