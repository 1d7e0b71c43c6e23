"""The answer in fp64, from logical keys and values before paging, so that a wrong block table cannot cancel out.

Dense attention with an online softmax over tiles of queries and keys: memory is bounded whatever the lengths. It knows
nothing of backends or tolerances. Which keys a row sees is the layout's. Where a full answer would take minutes it
answers for a seeded sample of rows and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pagedbench.errors import PagedbenchError
from pagedbench.layout.batch import BatchLayout, IntArray
from pagedbench.oracle.sampling import sample_rows
from pagedbench.oracle.tiles import Group, Span, groups, spans, union
from pagedbench.scenario.model import Attention
from pagedbench.tensors.inputs import LogicalInputs
from pagedbench.tensors.transfer import all_to_device, to_device


@dataclass(frozen=True)
class Limits:
    """`scores`: fp64 scores held at one time. `flops`: beyond that many a sample of rows is answered."""

    scores: int
    flops: float


# A CPU does some 2e10 FLOP/s in fp64 on the two cores of a CI machine, a GPU with fp64 tensor cores some 4e13.
# On an H200 tiles of 0.5 GiB take 0.82 of the time that tiles of 0.125 GiB do.
LIMITS = {"cpu": Limits(1 << 21, 4e10), "cuda": Limits(1 << 26, 2e15)}


class NoReference(PagedbenchError):
    """The oracle could not answer (out of memory); never a pass."""


@dataclass(frozen=True)
class Reference:
    """The oracle's answer for the query tokens `rows` `(n,)`, ascending.

    `out` `(n, num_heads, head_dim_v)`, `lse` `(n, num_heads)` natural logarithm, sink included; `p2v2`
    `(n, num_heads)` is sum p² |v|², `p2` `(n, num_heads)` sum p², `peak` `(n, num_heads)` the largest score (−inf
    without keys); all fp64. `visible` `(n,)` int64 keys that each row sees. `sampled`: `rows` are some of `total_rows`
    only.
    """

    rows: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    p2v2: torch.Tensor
    p2: torch.Tensor
    peak: torch.Tensor
    visible: torch.Tensor
    sampled: bool
    total_rows: int


def reference(
    inputs: LogicalInputs,
    layout: BatchLayout,
    attention: Attention,
    *,
    device: torch.device | str,
    rows: torch.Tensor | None = None,
    limits: Limits | None = None,
    seed: int = 0,
) -> Reference:
    """Attention of `inputs` in fp64. `rows` asks for some query tokens (ascending indices), else all, or a sample.

    Raises NoReference when memory runs out.
    """
    where = torch.device(device)
    bounds = limits or LIMITS.get(where.type, LIMITS["cpu"])
    tokens = _wanted(layout, attention, rows, bounds, seed)
    try:
        return _Oracle(inputs, layout, attention, tokens, where, bounds).answer()
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise NoReference(f"the oracle ran out of memory: {error}") from error


def attention_flops(layout: BatchLayout, attention: Attention) -> float:
    """`2 (head_dim + head_dim_v)` for each visible (query token, key) pair and head."""
    pairs = float((layout.visible_to - layout.visible_from).sum())
    return 2.0 * (attention.head_dim + attention.head_dim_v) * attention.num_heads * pairs


def _wanted(
    layout: BatchLayout, attention: Attention, rows: torch.Tensor | None, limits: Limits, seed: int
) -> IntArray:
    if rows is not None:
        return rows.cpu().numpy().astype(np.int64)
    flops = attention_flops(layout, attention)
    if flops <= limits.flops:
        return np.arange(layout.total_q, dtype=np.int64)
    return sample_rows(layout, limits.flops / flops, seed)


class _Oracle:
    """One answer in the making: the running peak, sum and products of every row asked for."""

    def __init__(
        self,
        inputs: LogicalInputs,
        layout: BatchLayout,
        attention: Attention,
        tokens: IntArray,
        device: torch.device,
        limits: Limits,
    ) -> None:
        self.inputs, self.layout, self.attention, self.tokens = inputs, layout, attention, tokens
        self.device, self.limits = device, limits
        self.visible_from, self.visible_to = layout.visible_from[tokens], layout.visible_to[tokens]
        sequence = layout.row_sequence()[tokens]
        position = layout.total_seqlens[sequence] - layout.query_lens[sequence] + tokens
        self.position = position - layout.cu_seqlens_q[sequence]

    def answer(self) -> Reference:
        """Work through all groups and tiles."""
        shape = (len(self.tokens), self.attention.num_heads)
        p2v2 = torch.zeros(shape, dtype=torch.float64, device=self.device)
        out, p2 = p2v2.new_zeros((*shape, self.attention.head_dim_v)), torch.zeros_like(p2v2)
        peak, lse = p2v2.new_full(shape, -torch.inf), p2v2.new_full(shape, -torch.inf)
        if self.attention.sinks is not None:
            lse.copy_(p2v2.new_tensor(self.attention.sinks).expand(shape))
        for group in groups(self.layout, self.tokens, self._pairs()):
            for part in spans(group.rows.shape[1], self._query_step(group)):
                self._tile_row(group, part, (out, lse, p2v2, p2, peak))
        total = self.layout.total_q
        rows, visible = all_to_device((self.tokens, self.visible_to - self.visible_from), self.device)
        return Reference(rows, out, lse, p2v2, p2, peak, visible, len(self.tokens) < total, total)

    def _pairs(self) -> int:
        return max(self.limits.scores // self.attention.num_heads, 1)

    def _query_step(self, group: Group) -> int:
        """Query tokens a tile: the square of it is a tile of a long prefill; all of them for short ones."""
        pairs = self._pairs() // len(group.sequences)
        return max(int(pairs**0.5), pairs // max(group.keys, 1), 1)

    def _key_step(self, group: Group) -> int:
        """Keys a tile at most: their K and V in fp64 are held to twice the scores' memory."""
        attention = self.attention
        row = attention.num_kv_heads * (attention.head_dim + attention.head_dim_v)
        return 2 * self.limits.scores // (row * len(group.sequences))

    def _tile_row(self, group: Group, part: Span, results: tuple[torch.Tensor, ...]) -> None:
        """All keys for some query tokens of a group, into the results' rows."""
        rows = group.rows[:, part.start : part.stop]
        real = rows >= 0
        begin = np.where(real, self.visible_from[rows], 0)
        end = np.where(real, self.visible_to[rows], 0)
        reach = union(begin, end)
        if reach.stop == reach.start:
            return
        kept = np.flatnonzero(real & (end > begin))
        safe = np.maximum(rows, 0)
        host = (self.tokens[safe], self.position[safe], begin, end, kept, rows.reshape(-1)[kept])
        tokens, position, first, last, chosen, flat = all_to_device(host, self.device)
        state = _State(self, group, tokens, position, Visible(begin, end, first, last))
        step = max(min(self._pairs() // rows.size, self._key_step(group)), 1)
        for keys in spans(reach.stop - reach.start, step):
            state.add(Span(reach.start + keys.start, reach.start + keys.stop))
        for target, value in zip(results, state.finish(), strict=True):
            target.index_copy_(0, flat, value.flatten(0, 1).index_select(0, chosen))


@dataclass(frozen=True)
class Visible:
    """The half-open range of keys that each row sees, all `(n, r)` int64: `begin`, `end` on the host, to be asked
    without waiting, `first`, `last` the same on the device."""

    begin: IntArray
    end: IntArray
    first: torch.Tensor
    last: torch.Tensor

    def cut_by(self, keys: Span) -> bool:
        """Whether some row does not see all of these keys."""
        return bool((self.begin > keys.start).any() or (self.end < keys.stop).any())


class _State:
    """Online softmax of one tile row. Shapes: n sequences, h KV heads, g query heads of one, r query tokens."""

    def __init__(
        self, oracle: _Oracle, group: Group, tokens: torch.Tensor, position: torch.Tensor, visible: Visible
    ) -> None:
        self.oracle, self.group, self.visible, self.position = oracle, group, visible, position
        attention = oracle.attention
        self.shape = (tokens.shape[0], attention.num_kv_heads, attention.group_size, tokens.shape[1])
        q = oracle.inputs.q.to(oracle.device)[tokens].to(torch.float64)  # (n, r, heads, d)
        q = q.view(*q.shape[:2], attention.num_kv_heads, attention.group_size, q.shape[3]).permute(0, 2, 3, 1, 4)
        self.q = (q * (attention.softmax_scale * attention.k_scale)).reshape(-1, q.shape[2] * q.shape[3], q.shape[4])
        self.peak = self.q.new_full(self.q.shape[:2], -torch.inf)
        self.lse = self.peak.clone()
        self.product = self.q.new_zeros((*self.q.shape[:2], attention.head_dim_v))
        self.squares = self.q.new_zeros((*self.q.shape[:2], 2))  # of the weights: times |v|², and alone

    def add(self, keys: Span) -> None:
        """Take some keys into account."""
        k, v = self._keys(keys)
        scores = torch.bmm(self.q, k.transpose(1, 2))
        masked = self._shape_scores(scores, keys)
        top = scores.amax(-1)
        # Normalised among these keys, which torch does in one pass where exp(score - peak) and its sum take several.
        weights = torch.softmax(scores, -1)
        del scores
        if masked:
            weights.masked_fill_((top == -torch.inf)[..., None], 0.0)  # 0 / 0 in rows that see none of these keys
        self._join(top, weights, v)

    def _join(self, top: torch.Tensor, weights: torch.Tensor, v: torch.Tensor) -> None:
        """Weigh what was seen so far and some more keys, of which `top` is the largest score, by their sums."""
        lse = top - torch.log(weights.amax(-1))
        lse = torch.where(top == -torch.inf, top, lse)
        both = torch.logaddexp(self.lse, lse)
        # Where a row has seen no key yet the shift is 0: exp(-inf - 0) is 0, while -inf - -inf were NaN.
        shift = torch.where(both == -torch.inf, 0.0, both)
        old, new = (torch.exp(part - shift)[..., None] for part in (self.lse, lse))
        self.peak, self.lse = torch.maximum(self.peak, top), both
        self.product = self.product * old + torch.bmm(weights, v) * new
        v2 = v.square().sum(-1)
        moments = torch.bmm(weights.square_(), torch.stack((v2, torch.ones_like(v2)), -1))
        self.squares = self.squares * old.square() + moments * new.square()

    def finish(self) -> tuple[torch.Tensor, ...]:
        """Output, LSE, sum p² |v|², sum p² and peak as `(n, r, heads[, d])`; rows that saw nothing are not meant to
        be used."""
        attention = self.oracle.attention
        lse = self.lse
        if attention.sinks is not None:
            sinks = torch.tensor(attention.sinks, dtype=torch.float64, device=self.q.device)
            per_row = sinks.view(1, *self.shape[1:3], 1).expand(self.shape).reshape(self.peak.shape)
            lse = torch.logaddexp(lse, per_row)
        normal = torch.exp(self.lse - lse)
        out = self.product * (normal * attention.v_scale)[..., None]
        p2v2, p2 = (self.squares * normal.square()[..., None]).unbind(-1)
        return tuple(self._by_token(value) for value in (out, lse, p2v2 * attention.v_scale**2, p2, self.peak))

    def _keys(self, keys: Span) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of these positions of each sequence `(n * h, keys, d)` in fp64; past its end some other key's."""
        first, inputs = self.group.first_key, self.oracle.inputs
        if len(first) == 1:
            # One sequence: a slice, no gather, and the product takes it with its strides.
            window = slice(int(first[0]) + keys.start, int(first[0]) + keys.stop)
            return tuple(t[window].to(self.q.device, torch.float64).transpose(0, 1) for t in (inputs.k, inputs.v))  # type: ignore[return-value]
        place = np.minimum(first[:, None] + np.arange(keys.start, keys.stop), len(inputs.k) - 1)
        index = to_device(place, self.q.device)
        return tuple(  # type: ignore[return-value]
            t.to(self.q.device)[index].transpose(1, 2).flatten(0, 1).to(torch.float64) for t in (inputs.k, inputs.v)
        )

    def _shape_scores(self, scores: torch.Tensor, keys: Span) -> bool:
        """Softcap, ALiBi (−slope · distance, as flash-attn has it) and masks, in place; whether anything was masked."""
        attention = self.oracle.attention
        if attention.softcap is not None:
            scores.div_(attention.softcap).tanh_().mul_(attention.softcap)
        cut = self.visible.cut_by(keys)
        if not cut and attention.alibi_slopes is None:
            return False
        view = scores.view(*self.shape, keys.stop - keys.start)
        place = torch.arange(keys.start, keys.stop, device=scores.device)
        if attention.alibi_slopes is not None:
            slopes = torch.tensor(attention.alibi_slopes, dtype=torch.float64, device=scores.device)
            distance = (self.position[..., None] - place).abs().to(torch.float64)
            view.sub_(slopes.view(1, *self.shape[1:3], 1, 1) * distance[:, None, None])
        if cut:
            hidden = (place < self.visible.first[..., None]) | (place >= self.visible.last[..., None])
            view.masked_fill_(hidden[:, None, None], -torch.inf)
        return cut

    def _by_token(self, value: torch.Tensor) -> torch.Tensor:
        value = value.view(*self.shape, *value.shape[2:])
        return value.permute(0, 3, 1, 2, *range(4, value.ndim)).flatten(2, 3)
