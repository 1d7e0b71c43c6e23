"""The attention section: model table, head arithmetic, window forms and dtypes to one value for one meaning."""

from __future__ import annotations

from dataclasses import dataclass

from pagedbench.scenario.document import INDEX_ARRAYS, AttentionSection
from pagedbench.scenario.model import AUTO_SPLITS, UNLIMITED, Attention, Dtype, IndexDtype
from pagedbench.scenario.models import MODELS, ModelFacts, shard_heads
from pagedbench.scenario.refusals import Refusals, describe, nearest

_NO_MODEL = ModelFacts(0, 0, 0)
_FP8: Dtype = "float8_e4m3fn"


@dataclass(frozen=True)
class _Heads:
    num_heads: int
    num_kv_heads: int
    head_dim: int


def resolve_attention(section: AttentionSection, refusals: Refusals) -> Attention | None:
    """The attention with every default filled in; None where something is refused."""
    before = len(refusals.problems)
    facts = _facts(section, refusals)
    if facts is None:
        return None
    heads = _heads(section, facts, refusals)
    window_size = _window_size(section, facts, refusals)
    if heads is None or window_size is None:
        return None
    kv_dtype = section.kv_dtype or section.dtype
    _check_scales(section, kv_dtype, refusals)
    attention = Attention(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        head_dim_v=section.head_dim_v or heads.head_dim,
        dtype=section.dtype,
        q_dtype=section.q_dtype or section.dtype,
        kv_dtype=kv_dtype,
        k_scale=section.k_scale or 1.0,
        v_scale=section.v_scale or 1.0,
        causal=section.causal,
        window_size=window_size,
        softcap=_given(section, "softcap", facts.softcap),
        sinks=_sinks(section, facts, heads.num_heads, refusals),
        softmax_scale=section.softmax_scale or facts.softmax_scale or heads.head_dim**-0.5,
        alibi_slopes=_alibi(section, heads.num_heads, refusals),
        num_splits=AUTO_SPLITS if section.num_splits == "auto" else section.num_splits,
        index_dtype=_index_dtype(section, refusals),
        model=section.model,
    )
    return attention if len(refusals.problems) == before else None


def standard_alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """The slopes of the ALiBi paper (Press et al., 2022): a geometric row, and every other one of the next longer row
    for the heads beyond a power of two."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    longer = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (num_heads - power), 2)]
    return tuple(slopes + longer)


def _facts(section: AttentionSection, refusals: Refusals) -> ModelFacts | None:
    if section.model is None:
        if section.tensor_parallel is not None:
            refusals.add("attention.tensor_parallel", "no model", "a model whose heads it divides")
            return None
        return _NO_MODEL
    facts = MODELS.get(section.model)
    if facts is None:
        hint = nearest(section.model, MODELS) or f"known: {', '.join(MODELS)}"
        refusals.add("attention.model", describe(section.model), "a model of the table", hint)
    return facts


def _heads(section: AttentionSection, facts: ModelFacts, refusals: Refusals) -> _Heads | None:
    ranks = section.tensor_parallel or 1
    shard = shard_heads(facts, ranks) if section.model else (0, 0)
    if shard is None and not (section.num_heads and section.num_kv_heads):
        needed = f"a divisor of the {facts.num_heads} heads, and of the {facts.num_kv_heads} KV heads or a multiple"
        refusals.add("attention.tensor_parallel", str(ranks), needed)
        return None
    num_heads, num_kv_heads = shard or (0, 0)
    heads = _Heads(
        section.num_heads or num_heads, section.num_kv_heads or num_kv_heads, section.head_dim or facts.head_dim
    )
    missing = [name for name in ("num_heads", "num_kv_heads", "head_dim") if not getattr(heads, name)]
    for name in missing:
        refusals.add(f"attention.{name}", "nothing", "a number, or model")
    if missing:
        return None
    if heads.num_heads % heads.num_kv_heads:
        needed = f"a divisor of the {heads.num_heads} query heads"
        refusals.add("attention.num_kv_heads", str(heads.num_kv_heads), needed)
        return None
    return heads


def _window_size(section: AttentionSection, facts: ModelFacts, refusals: Refusals) -> tuple[int, int] | None:
    """(left, right), with one value for one meaning; None where the two forms meet or a form does not fit."""
    if section.window_size is None:
        return _from_window(section, facts, refusals)
    if section.window is not None:
        refusals.add("attention.window_size", "window_size beside window", "one of the two forms")
        return None
    left, right = section.window_size
    if not section.causal:
        return left, right
    if right > 0:
        found, hint = f"[{left}, {right}] with causal: true", "causal rows never look right; causal: false may"
        refusals.add("attention.window_size", found, "0 or −1 on the right", hint)
        return None
    # Causality leaves nothing to the right, so only a limit on the left is a window.
    return (UNLIMITED, UNLIMITED) if left == UNLIMITED else (left, 0)


def _from_window(section: AttentionSection, facts: ModelFacts, refusals: Refusals) -> tuple[int, int] | None:
    window = _given(section, "window", None if "window_size" in section.model_fields_set else facts.window)
    if window is None:
        return UNLIMITED, UNLIMITED
    if not section.causal:
        field = "attention.window" if section.window else "attention.model"
        refusals.add(field, f"a window of {window} with causal: false", "causal: true, or window_size: [left, right]")
        return None
    return int(window) - 1, 0


def _given(section: AttentionSection, name: str, from_model: float | None) -> float | None:
    """A field that the file gives, null included, or else the model's."""
    return getattr(section, name) if name in section.model_fields_set else from_model


def _sinks(
    section: AttentionSection, facts: ModelFacts, num_heads: int, refusals: Refusals
) -> tuple[float, ...] | None:
    sinks = section.sinks
    if "sinks" not in section.model_fields_set and facts.sinks:
        sinks = 0.0
    if sinks is None:
        return None
    if isinstance(sinks, list):
        return _one_a_head("attention.sinks", sinks, num_heads, refusals)
    return (float(sinks),) * num_heads


def _alibi(section: AttentionSection, num_heads: int, refusals: Refusals) -> tuple[float, ...] | None:
    if section.alibi is None or section.alibi is False:
        return None
    if section.alibi is True:
        return standard_alibi_slopes(num_heads)
    return _one_a_head("attention.alibi", section.alibi, num_heads, refusals)


def _one_a_head(field: str, values: list[float], num_heads: int, refusals: Refusals) -> tuple[float, ...]:
    if len(values) != num_heads:
        refusals.add(field, f"{len(values):,} numbers", f"{num_heads}, one a query head")
    return tuple(float(value) for value in values)


def _check_scales(section: AttentionSection, kv_dtype: Dtype, refusals: Refusals) -> None:
    for name in ("k_scale", "v_scale"):
        if getattr(section, name) is not None and kv_dtype != _FP8:
            refusals.add(f"attention.{name}", f"a scale for {kv_dtype}", f"kv_dtype: {_FP8}, which has one")


def _index_dtype(section: AttentionSection, refusals: Refusals) -> dict[str, IndexDtype]:
    """The arrays that are not int32."""
    given = section.index_dtype
    each: dict[str, IndexDtype] = dict.fromkeys(INDEX_ARRAYS, given) if isinstance(given, str) else given
    for name in each:
        if name not in INDEX_ARRAYS:
            needed = f"one of {', '.join(INDEX_ARRAYS)}"
            field = f"attention.index_dtype.{name}"
            refusals.add(field, "an unknown key", needed, nearest(name, INDEX_ARRAYS), at_key=True)
    return {name: dtype for name, dtype in each.items() if dtype != "int32"}
