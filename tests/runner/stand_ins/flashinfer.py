"""FlashInfer's wrappers, 0.6.6."""

import math

import torch
from dense import attend, split


class _Wrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, **options):
        self.hnd = kv_layout == "HND"

    def attend(self, queries, keys, values):
        planned = self.planned
        window = (planned["window_left"], -1)
        out, lse = attend(
            queries, keys, values, scale=planned["sm_scale"], causal=planned["causal"], window=window,
            softcap=planned["logits_soft_cap"], blind=-math.inf,
        )  # fmt: skip
        return out, torch.where(lse == -math.inf, -5e4, lse / math.log(2))


class _Paged(_Wrapper):
    def run(self, q, paged_kv_cache, *, k_scale=None, v_scale=None, return_lse=False):
        pools = [pool.transpose(1, 2) if self.hnd else pool for pool in paged_kv_cache]
        size, indptr, keys = self.planned["page_size"], self.planned["paged_kv_indptr"], []
        lengths = (indptr.diff() - 1).clamp(min=0) * size + self.planned["paged_kv_last_page_len"]
        for pool in pools:
            lists = split(self.planned["paged_kv_indices"], indptr)
            keys.append([pool[t.long()].flatten(0, 1)[:n] for t, n in zip(lists, lengths.tolist(), strict=True)])
        qo_indptr = self.planned.get("qo_indptr", torch.arange(len(q) + 1))
        out, lse = self.attend(split(q, qo_indptr), *keys)
        return (out, lse) if return_lse else out


class BatchDecodeWithPagedKVCacheWrapper(_Paged):
    def plan(
        self, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim,
        page_size, window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
        o_data_type=None, sm_scale=None, causal=False,
    ):  # fmt: skip
        self.planned = dict(locals())


class BatchPrefillWithPagedKVCacheWrapper(_Paged):
    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, head_dim_vo=None, causal=False, sm_scale=None, window_left=-1, logits_soft_cap=None,
        q_data_type="float16", kv_data_type=None, o_data_type=None, disable_split_kv=False,
    ):  # fmt: skip
        self.planned = dict(locals())


class BatchPrefillWithRaggedKVCacheWrapper(_Wrapper):
    def plan(
        self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, causal=False,
        window_left=-1, logits_soft_cap=None, sm_scale=None, q_data_type="float16", kv_data_type=None,
        o_data_type=None, disable_split_kv=False,
    ):  # fmt: skip
        self.planned = dict(locals())

    def run(self, q, k, v, *, return_lse=False):
        kv = self.planned["kv_indptr"]
        out, lse = self.attend(split(q, self.planned["qo_indptr"]), split(k, kv), split(v, kv))
        return (out, lse) if return_lse else out
