"""A table of models that people serve: what their attention looks like.

Only the attention of one layer, from the models' published configurations. Layers that differ within a model (windows
on every other layer) are a `note`: the table fills what all layers share, and a scenario says which layer it means.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelFacts:
    """Heads and head dim of the whole model, and what else all its layers share.

    `softmax_scale` is None where it is `head_dim ** -0.5`. `sinks` tells that each head has a learned sink; its value
    is not a fact about the model but about a layer, so a scenario that gives none gets the logit 0.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    softcap: float | None = None
    softmax_scale: float | None = None
    sinks: bool = False
    note: str = ""


def _gemma2(num_heads: int, num_kv_heads: int, head_dim: int, scale: float | None = None) -> ModelFacts:
    note = "every other layer has window: 4096"
    return ModelFacts(num_heads, num_kv_heads, head_dim, softcap=50.0, softmax_scale=scale, note=note)


def _gemma3(num_heads: int, num_kv_heads: int, head_dim: int, window: int, scale: float | None = None) -> ModelFacts:
    note = f"five layers of six have window: {window}"
    return ModelFacts(num_heads, num_kv_heads, head_dim, softmax_scale=scale, note=note)


_GPT_OSS = ModelFacts(64, 8, 64, sinks=True, note="every other layer has window: 128")

MODELS: dict[str, ModelFacts] = {
    "command-r": ModelFacts(64, 64, 128),
    "command-r-plus": ModelFacts(96, 8, 128),
    "deepseek-r1-distill-llama-8b": ModelFacts(32, 8, 128),
    "deepseek-r1-distill-llama-70b": ModelFacts(64, 8, 128),
    "deepseek-r1-distill-qwen-7b": ModelFacts(28, 4, 128),
    "deepseek-r1-distill-qwen-32b": ModelFacts(40, 8, 128),
    "falcon-7b": ModelFacts(71, 1, 64),
    "falcon-40b": ModelFacts(128, 8, 64),
    "gemma-2-2b": _gemma2(8, 4, 256),
    "gemma-2-9b": _gemma2(16, 8, 256),
    "gemma-2-27b": _gemma2(32, 16, 128, scale=144**-0.5),
    "gemma-3-1b": _gemma3(4, 1, 256, window=512),
    "gemma-3-4b": _gemma3(8, 4, 256, window=1024),
    "gemma-3-12b": _gemma3(16, 8, 256, window=1024),
    "gemma-3-27b": _gemma3(32, 16, 128, window=1024, scale=168**-0.5),
    "gpt-2": ModelFacts(12, 12, 64),
    "gpt-oss-20b": _GPT_OSS,
    "gpt-oss-120b": _GPT_OSS,
    "llama-2-7b": ModelFacts(32, 32, 128),
    "llama-2-13b": ModelFacts(40, 40, 128),
    "llama-2-70b": ModelFacts(64, 8, 128),
    "llama-3.1-8b": ModelFacts(32, 8, 128),
    "llama-3.1-70b": ModelFacts(64, 8, 128),
    "llama-3.1-405b": ModelFacts(128, 8, 128),
    "llama-3.2-1b": ModelFacts(32, 8, 64),
    "llama-3.2-3b": ModelFacts(24, 8, 128),
    "llama-3.3-70b": ModelFacts(64, 8, 128),
    "mistral-7b-v0.1": ModelFacts(32, 8, 128, window=4096),
    "mistral-7b-v0.3": ModelFacts(32, 8, 128),
    "mistral-nemo-12b": ModelFacts(32, 8, 128),
    "mixtral-8x7b": ModelFacts(32, 8, 128),
    "mixtral-8x22b": ModelFacts(48, 8, 128),
    "phi-2": ModelFacts(32, 32, 80),
    "phi-3-mini-4k": ModelFacts(32, 32, 96, window=2047),
    "phi-3-medium": ModelFacts(40, 10, 128),
    "phi-4": ModelFacts(40, 10, 128),
    "qwen2.5-0.5b": ModelFacts(14, 2, 64),
    "qwen2.5-1.5b": ModelFacts(12, 2, 128),
    "qwen2.5-7b": ModelFacts(28, 4, 128),
    "qwen2.5-14b": ModelFacts(40, 8, 128),
    "qwen2.5-32b": ModelFacts(40, 8, 128),
    "qwen2.5-72b": ModelFacts(64, 8, 128),
    "qwen3-0.6b": ModelFacts(16, 8, 128),
    "qwen3-8b": ModelFacts(32, 8, 128),
    "qwen3-14b": ModelFacts(40, 8, 128),
    "qwen3-32b": ModelFacts(64, 8, 128),
    "qwen3-30b-a3b": ModelFacts(32, 4, 128),
    "qwen3-235b-a22b": ModelFacts(64, 4, 128),
    "yi-34b": ModelFacts(56, 8, 128),
}


def shard_heads(facts: ModelFacts, tensor_parallel: int) -> tuple[int, int] | None:
    """Query and KV heads of one of `tensor_parallel` ranks; None where they cannot be divided.

    KV heads are divided while there are enough of them, then replicated so that each rank has one.
    """
    if facts.num_heads % tensor_parallel:
        return None
    if facts.num_kv_heads % tensor_parallel == 0:
        return facts.num_heads // tensor_parallel, facts.num_kv_heads // tensor_parallel
    if tensor_parallel % facts.num_kv_heads == 0:
        return facts.num_heads // tensor_parallel, 1
    return None
