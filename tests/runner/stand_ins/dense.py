"""What the stand-ins of libraries compute with: dense attention in fp32, and nothing of the tool's.

A library's function takes its arguments by the library's own names, and gives them to `attend` a sequence at a time.
`FAULT` plants one in all of them: "output", "lse", "append" (no new token is written).
"""

import torch

FAULT = ""


def attend(queries, keys, values, *, scale, causal, window, softcap=None, sinks=None, blind=float("inf")):
    """Lists of `(n, heads, dim)`, one tensor a sequence; returns out `(total_q, heads, dim_v)` and LSE `(total_q,
    heads)`, in which rows without a key have `blind`."""
    outs, lses = [], []
    for q, *held in zip(queries, keys, values, strict=True):
        m, n, heads = len(q), len(held[0]), q.shape[1]
        k, v = (t.float().nan_to_num().repeat_interleave(heads // t.shape[1], 1) for t in held)
        s = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        gap = torch.arange(n - m, n)[:, None] - torch.arange(n)
        left, right = (-1 if side is None else side for side in window)
        seen = torch.ones_like(gap, dtype=torch.bool) if not causal else gap >= 0
        seen &= (gap <= left) if left >= 0 else True
        seen &= (gap >= -right) if right >= 0 else True
        s = s.masked_fill(~seen, -float("inf"))
        if sinks is not None:
            s = torch.cat([s, sinks.float()[:, None, None].expand(-1, m, 1)], -1)
        p = torch.softmax(s, -1)[..., :n].nan_to_num()
        lse = torch.logsumexp(s, -1).T
        lses.append(torch.where(seen.any(-1)[:, None], lse, blind))
        outs.append(torch.einsum("hqk,khd->qhd", p, v).to(q.dtype))
    return torch.cat(outs) * (1.1 if FAULT == "output" else 1), torch.cat(lses) + (0.01 if FAULT == "lse" else 0)


def split(tensor, cumulative):
    """By cumulative lengths."""
    return [tensor[a:b] for a, b in zip(cumulative[:-1].tolist(), cumulative[1:].tolist(), strict=True)]


def gather(pool, table, lengths):
    """Each sequence's tokens out of a pool `(blocks, block_size, heads, dim)`."""
    size, found = pool.shape[1], []
    for row, n in zip(table, lengths.tolist(), strict=True):
        at = torch.arange(n)
        found.append(pool[row.long()[at // size].clamp(min=0), at % size])
    return found


def append(pools, new, table, starts):
    """Write lists of new tokens behind the `starts` keys of each sequence."""
    size = pools[0].shape[1]
    for pool, tokens in zip(pools, new, strict=True):
        for row, start, mine in zip(table, starts.tolist(), tokens, strict=True):
            at = torch.arange(start, start + len(mine))
            if FAULT != "append":
                pool[row.long()[at // size], at % size] = mine
