"""Faults of masks that one query token a sequence, or one feature at a time, cannot show. No public report is behind
them: a tester planted them, and no shipped scenario caught them.

Given to pagedbench as a user would: `--backend masked_kernels.py:SoftcapAfterMask`.
"""

from __future__ import annotations

import torch

from tests.bug_reports.kernels import Right, on


class WithSoftcap(Right):
    """Scores are capped, and hidden ones are −inf before or after that."""

    after_mask = False

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        scores, hidden = torch.einsum("hd,khd->hk", q, k) * self.spec.softmax_scale, ~seen
        if self.after_mask:
            scores = scores.masked_fill(hidden, -torch.inf)
        if self.spec.softcap is not None:
            scores = self.spec.softcap * torch.tanh(scores / self.spec.softcap)
        if not self.after_mask:
            scores = scores.masked_fill(hidden, -torch.inf)
            v = v.masked_fill(hidden[:, None, None], 0.0)
        return torch.einsum("hk,khd->hd", scores.softmax(-1), v), scores.logsumexp(-1)


right_softcap_decode = on("decode")(WithSoftcap)
right_softcap_paged_varlen = on("paged-varlen")(WithSoftcap)


class AfterMask(WithSoftcap):
    """The softcap of −inf is −softcap, which has a weight."""

    after_mask = True


after_mask_decode = on("decode")(AfterMask)
after_mask_paged_varlen = on("paged-varlen")(AfterMask)


@on("decode")
class WindowOfSecondToken(WithSoftcap):
    """The window begins one key late, for the second query token alone."""

    def seen(self, i: int, query_len: int, length: int) -> torch.Tensor:
        seen = super().seen(i, query_len, length)
        left = self.spec.window_size[0]
        if i == 1 and left >= 0:
            seen[: max(0, length - query_len + i - left + 1)] = False
        return seen
