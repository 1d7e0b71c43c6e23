"""Faults of mask, scale, softcap, sinks and heads: what a row sees and how the scores are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from pagedbench.faults.fault import Change, Fault
from pagedbench.faults.program import NO_SLOT, AttentionProgram, visible_range
from pagedbench.scenario.model import UNLIMITED

QUERY_TILE = 16
SINK_SPLITS = 4


def causal_top_left(program: AttentionProgram) -> AttentionProgram:
    """Query token i sees keys up to i."""
    if not program.facts.spec.causal:
        return program
    total = program.facts.total[program.facts.row_sequence]
    last = torch.minimum(program.facts.row_index + 1, total)
    return program.replace(first=torch.minimum(program.first, last), last=last)


def aligned_by_the_longest_query(program: AttentionProgram) -> AttentionProgram:
    """Every sequence is taken to have as many query tokens as the longest query (max_seqlen_q)."""
    facts = program.facts
    longest = torch.full_like(facts.query_lens, int(facts.query_lens.max()) if facts.batch else 0)
    first, last = visible_range(replace(facts, query_lens=longest), facts.spec.causal, facts.spec.window_size)
    return program.replace(first=first, last=last)


def causal_ignored(program: AttentionProgram) -> AttentionProgram:
    """Every row sees the sequence's last key."""
    if not program.facts.spec.causal:
        return program
    return program.replace(last=program.facts.total[program.facts.row_sequence])


def causal_one_late(program: AttentionProgram) -> AttentionProgram:
    """Every row sees one key of its future, as far as there is one."""
    if not program.facts.spec.causal:
        return program
    total = program.facts.total[program.facts.row_sequence]
    return program.replace(last=torch.minimum(program.last + 1, total))


def causal_one_early(program: AttentionProgram) -> AttentionProgram:
    """No row sees its own key."""
    if not program.facts.spec.causal:
        return program
    return program.replace(last=torch.maximum(program.last - 1, program.first))


def window_one_wide(program: AttentionProgram) -> AttentionProgram:
    """The window holds one key more on the left."""
    if program.facts.spec.window_size[0] == UNLIMITED:
        return program
    own = _sees(program) & (program.first > 0)
    return program.replace(first=program.first - own.long())


def window_one_narrow(program: AttentionProgram) -> AttentionProgram:
    """The window holds one key less on the left, where it cuts anything off."""
    if program.facts.spec.window_size[0] == UNLIMITED:
        return program
    cut = _sees(program) & (_left_edge(program) >= 0)
    return program.replace(first=torch.minimum(program.first + cut.long(), program.last))


def window_one_right(program: AttentionProgram) -> AttentionProgram:
    """The window reaches one key less to the right."""
    if not program.facts.spec.windowed:
        return program
    return program.replace(last=torch.maximum(program.last - 1, program.first))


def window_ignored(program: AttentionProgram) -> AttentionProgram:
    """Every key on the left is seen."""
    return program.replace(first=torch.where(_sees(program), 0, program.first))


def window_wrong_in_first_tile(program: AttentionProgram) -> AttentionProgram:
    """The window is ignored in the first tile of query tokens only."""
    first_tile = _sees(program) & (program.facts.row_index < QUERY_TILE)
    return program.replace(first=torch.where(first_tile, 0, program.first))


def window_of_last_token(program: AttentionProgram) -> AttentionProgram:
    """The window of every query token begins where that of the sequence's last one does."""
    facts = program.facts
    if facts.spec.window_size[0] == UNLIMITED:
        return program
    last_own = facts.total[facts.row_sequence] - 1
    edge = torch.clamp(last_own - facts.spec.window_size[0], min=0)
    return program.replace(first=torch.where(_sees(program), torch.minimum(edge, program.last), program.first))


def window_to_block_start(program: AttentionProgram) -> AttentionProgram:
    """The whole block is seen in which the window begins."""
    if program.facts.spec.window_size[0] == UNLIMITED:
        return program
    start = program.first // program.facts.block_size * program.facts.block_size
    return program.replace(first=torch.where(_sees(program), start, program.first))


def _sees(program: AttentionProgram) -> torch.Tensor:
    return program.last > program.first


def _left_edge(program: AttentionProgram) -> torch.Tensor:
    """Where the window begins, before it is cut off at key 0."""
    facts = program.facts
    sequence = facts.row_sequence
    own = facts.total[sequence] - facts.query_lens[sequence] + facts.row_index
    return own - facts.spec.window_size[0]


def _scaled(factor: Callable[[float], float]) -> Change:
    def change(program: AttentionProgram) -> AttentionProgram:
        scale = program.scoring.scale
        return program.replace(scoring=replace(program.scoring, scale=scale * factor(scale)))

    return change


def _scoring(**changes: object) -> Change:
    def change(program: AttentionProgram) -> AttentionProgram:
        if program.scoring.softcap is None:
            return program
        return program.replace(scoring=replace(program.scoring, **changes))  # type: ignore[arg-type]

    return change


def softcap_after_mask(program: AttentionProgram) -> AttentionProgram:
    """Every key of a whole block counts, a masked one with the score −softcap that the cap makes of −inf."""
    facts, cap = program.facts, program.scoring.softcap
    if cap is None:
        return program
    blocks = program.position < (facts.blocks * facts.block_size)[:, None]
    read = blocks & (program.k_slots != NO_SLOT)
    return program.replace(masked=program.masked | read, scoring=replace(program.scoring, masked=-cap))


def _finite_mask(score: float, **lse: object) -> Change:
    """Masked keys get a finite score instead of −inf: a row that sees none is given the mean of V over all of them, and
    its LSE is finite but for an LSE rule that says otherwise."""

    def change(program: AttentionProgram) -> AttentionProgram:
        blind = ~_sees(program) & (program.facts.total[program.facts.row_sequence] > 0)
        if not bool(blind.any()):
            return program
        of_blind = torch.zeros(program.facts.batch, dtype=torch.bool)
        of_blind[program.facts.row_sequence[blind]] = True
        return program.replace(
            masked=program.masked | (program.inside & of_blind[:, None]),
            scoring=replace(program.scoring, masked=score),
            lse=replace(program.lse, **lse),  # type: ignore[arg-type]
        )

    return change


def channels_dropped(program: AttentionProgram) -> AttentionProgram:
    """The last eighth of the head dim is left out of q·k."""
    kept = program.scoring.channels - max(1, program.scoring.channels // 8)
    return program.replace(scoring=replace(program.scoring, channels=kept))


def _sink_count(count: float) -> Change:
    def change(program: AttentionProgram) -> AttentionProgram:
        return program if program.sinks is None else program.replace(sink_count=count)

    return change


def _by_head(name: str, changed: Callable[[torch.Tensor, AttentionProgram], torch.Tensor]) -> Change:
    """What is given by head, `sinks` or `alibi`, as another tensor; no fault where there is none."""

    def change(program: AttentionProgram) -> AttentionProgram:
        values = getattr(program, name)
        return program if values is None else program.replace(**{name: changed(values, program)})

    return change


def _of_kv_head(values: torch.Tensor, program: AttentionProgram) -> torch.Tensor:
    spec = program.facts.spec
    return values[torch.arange(spec.num_heads) // spec.group_size]


def _reversed(values: torch.Tensor, program: AttentionProgram) -> torch.Tensor:
    return values.flip(0)


def kv_head_modulo(program: AttentionProgram) -> AttentionProgram:
    """Query head h uses KV head `h % num_kv_heads`."""
    spec = program.facts.spec
    heads = torch.arange(spec.num_heads) % spec.num_kv_heads
    return program.replace(k_heads=heads, v_heads=heads)


def kv_head_off_by_one(program: AttentionProgram) -> AttentionProgram:
    """Every query head uses the next KV head."""
    heads = (program.k_heads + 1) % program.facts.spec.num_kv_heads
    return program.replace(k_heads=heads, v_heads=heads)


def kv_head_zero(program: AttentionProgram) -> AttentionProgram:
    """Every query head uses KV head 0."""
    heads = torch.zeros_like(program.k_heads)
    return program.replace(k_heads=heads, v_heads=heads)


def v_head_off_by_one(program: AttentionProgram) -> AttentionProgram:
    """K of the right KV head, V of the next."""
    return program.replace(v_heads=(program.v_heads + 1) % program.facts.spec.num_kv_heads)


def _scales(changed: Callable[[float, float], tuple[float, float]]) -> Change:
    """What K and V are multiplied by, made of k_scale and v_scale."""

    def change(program: AttentionProgram) -> AttentionProgram:
        k_scale, v_scale = changed(program.k_scale, program.v_scale)
        return program.replace(k_scale=k_scale, v_scale=v_scale)

    return change


def alibi_ignored(program: AttentionProgram) -> AttentionProgram:
    """No position bias."""
    return program.replace(alibi=None)


def _output(factor: float) -> Change:
    return lambda program: program.replace(out_factor=factor)


_SOFTCAP = "a softcap that the scores come near"
_WINDOW = "a window narrower than the keys"
_FP8 = "fp8 with a scale other than 1"
_FP8_APART = "fp8 with two scales that differ"
_BLIND = "a row that sees none of its sequence's keys"
_SINK = "sinks that take a share of the mass"

FAULTS = (
    Fault(
        "causal-top-left",
        "the causal mask is aligned top-left",
        "A",
        causal_top_left,
        "causal, with query and key lengths that differ",
        "pytorch/pytorch #108108",
    ),
    Fault(
        "causal-by-longest-query",
        "the causal mask is aligned by the longest query (max_seqlen_q)",
        "A",
        aligned_by_the_longest_query,
        "causal, with query lengths that differ",
    ),
    Fault("causal-ignored", "the causal mask is ignored", "W", causal_ignored, "causal, two query tokens"),
    Fault("causal-one-late", "the causal mask lets one future key through", "W", causal_one_late, "two query tokens"),
    Fault("causal-one-early", "the causal mask hides a token's own key", "W", causal_one_early, "causal"),
    Fault(
        "window-one-wide",
        "the window is one key too wide on the left",
        "A",
        window_one_wide,
        _WINDOW,
        "huggingface/transformers #39408",
    ),
    Fault(
        "window-one-narrow",
        "the window is one key too narrow on the left",
        "A",
        window_one_narrow,
        _WINDOW,
        "vllm-project/vllm #3385",
    ),
    Fault("window-one-right", "the window ends one key early on the right", "A", window_one_right, "a window"),
    Fault("window-ignored", "the window is ignored", "W", window_ignored, _WINDOW),
    Fault(
        "window-wrong-in-first-tile",
        "the window is ignored in the first tile of query tokens",
        "W",
        window_wrong_in_first_tile,
        _WINDOW,
    ),
    Fault(
        "window-of-last-token",
        "the window of every query token begins where the last one's does",
        "A",
        window_of_last_token,
        "a window, and two query tokens",
    ),
    Fault(
        "window-to-block-start",
        "the window begins at the start of its first block",
        "A",
        window_to_block_start,
        "a window that begins inside a block",
    ),
    Fault("scale-1-percent", "the softmax scale is 1 % too large", "W", _scaled(lambda scale: 1.01)),
    Fault("scale-sqrt-2", "the softmax scale is off by √2", "W", _scaled(lambda scale: math.sqrt(2.0))),
    Fault(
        "scale-missing", "the softmax scale is missing", "W", _scaled(lambda scale: 1 / scale), "a scale other than 1"
    ),
    Fault(
        "scale-twice", "the softmax scale is applied twice", "W", _scaled(lambda scale: scale), "a scale other than 1"
    ),
    Fault("softcap-ignored", "the softcap is ignored", "W", _scoring(softcap=None), _SOFTCAP),
    Fault(
        "softcap-before-scale",
        "the softcap is applied before the scale",
        "W",
        _scoring(cap_before_scale=True),
        _SOFTCAP,
    ),
    Fault("softcap-overflow", "the softcap's exponential overflows", "N", _scoring(exp_overflows=True), _SOFTCAP),
    Fault(
        "softcap-after-mask",
        "the softcap is applied after the mask (−inf becomes −softcap)",
        "W",
        softcap_after_mask,
        "a softcap, and a partly used block or a masked key",
    ),
    Fault(
        "mask-finite",
        "masked keys score −1e30 instead of −inf, so that a row that sees none gets the mean of V",
        "N",
        _finite_mask(-1e30),
        _BLIND,
        "flashinfer-ai/flashinfer #4452",
    ),
    Fault(
        "mask-minus-10000",
        "masked keys score −10,000 instead of −inf, so that a row that sees none gets the mean of V",
        "N",
        _finite_mask(-10000.0),
        _BLIND,
    ),
    Fault(
        "empty-rows-mean-of-v",
        "rows that see no key get the mean of V",
        "N",
        _finite_mask(-1e30, of_blind_rows=False),
        _BLIND,
    ),
    Fault("channels-dropped", "the last channels of the head dim are left out of q·k", "W", channels_dropped),
    Fault("sink-ignored", "the sink is ignored", "W", _sink_count(0.0), _SINK),
    Fault("sink-doubled", "the sink is counted twice", "W", _sink_count(2.0), _SINK),
    Fault(
        "sink-scaled",
        "the sink is multiplied by the softmax scale",
        "W",
        _by_head("sinks", lambda sinks, program: sinks * program.scoring.scale),
        _SINK,
    ),
    Fault(
        "sink-base-2",
        "the sink is taken in base 2 (2^sink instead of e^sink)",
        "W",
        _by_head("sinks", lambda sinks, program: sinks * math.log(2.0)),
        _SINK,
    ),
    Fault("sink-per-split", "the sink is counted once a split", "W", _sink_count(float(SINK_SPLITS)), _SINK),
    Fault(
        "sink-of-kv-head",
        "sinks are indexed by KV head",
        "W",
        _by_head("sinks", _of_kv_head),
        "GQA with sinks that differ",
    ),
    Fault(
        "sink-reversed",
        "sinks are indexed from the last head on",
        "W",
        _by_head("sinks", _reversed),
        "sinks that differ",
    ),
    Fault("k-scale-ignored", "k_scale is left out", "W", _scales(lambda k, v: (1.0, v)), _FP8),
    Fault("v-scale-ignored", "v_scale is left out", "W", _scales(lambda k, v: (k, 1.0)), _FP8),
    Fault(
        "v-scale-of-k",
        "V is multiplied by k_scale",
        "W",
        _scales(lambda k, v: (k, k)),
        _FP8_APART,
    ),
    Fault(
        "kv-scales-swapped",
        "k_scale and v_scale are swapped",
        "W",
        _scales(lambda k, v: (v, k)),
        _FP8_APART,
    ),
    Fault(
        "v-scale-inverse",
        "V is divided by v_scale instead of multiplied",
        "W",
        _scales(lambda k, v: (k, 1 / v)),
        _FP8,
    ),
    Fault("v-scale-on-k", "K is multiplied by v_scale, too", "W", _scales(lambda k, v: (k * v, v)), _FP8),
    Fault("kv-head-modulo", "query head h uses KV head h % num_kv_heads", "W", kv_head_modulo, "GQA with two KV heads"),
    Fault("kv-head-off-by-one", "every query head uses the next KV head", "W", kv_head_off_by_one, "two KV heads"),
    Fault("kv-head-zero", "every query head uses KV head 0", "W", kv_head_zero, "two KV heads"),
    Fault("v-head-off-by-one", "V is taken from the next KV head (K is right)", "W", v_head_off_by_one, "two KV heads"),
    Fault("alibi-ignored", "the ALiBi bias is ignored", "W", alibi_ignored, "ALiBi slopes and two keys"),
    Fault(
        "alibi-of-kv-head", "ALiBi slopes are indexed by KV head", "W", _by_head("alibi", _of_kv_head), "GQA with ALiBi"
    ),
    Fault(
        "alibi-reversed",
        "ALiBi slopes are indexed from the last head on",
        "W",
        _by_head("alibi", _reversed),
        "ALiBi, two heads",
    ),
    Fault(
        "alibi-wrong-sign",
        "the ALiBi bias has the wrong sign",
        "W",
        _by_head("alibi", lambda slopes, program: -slopes),
        "ALiBi and two keys",
    ),
    Fault("all-zeros", "the output is all zeros", "W", _output(0.0), report="Xilinx/mlir-air #1427"),
    Fault(
        "mean-of-v",
        "the output is the mean of V",
        "W",
        _scaled(lambda scale: 0.0),
        "two keys",
        "Xilinx/mlir-air #1427",
    ),
)
