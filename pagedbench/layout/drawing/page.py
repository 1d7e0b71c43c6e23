"""The page that `show` prints for one scenario: its parts in the guide's order, the guide's names beside ours."""

from __future__ import annotations

import textwrap

import numpy as np
from rich.text import Text

from pagedbench.layout.batch import BatchLayout, Int32Array, IntArray
from pagedbench.layout.drawing import grid, strips, writes
from pagedbench.layout.drawing.arrays import GUIDE_NAMES, shapes
from pagedbench.layout.drawing.words import FAINT, INDENT, heading, plural, shade, short_list
from pagedbench.scenario.model import UNLIMITED, Scenario

NAME_WIDTH = 14
BESIDE = "   the guide's "
MATRIX_ROWS, MATRIX_COLUMNS = 8, 16
BLANK = Text()


def draw(scenario: Scenario, layout: BatchLayout, width: int) -> list[Text]:
    """The whole page as lines of at most `width` characters."""
    sections = [
        _title(scenario, layout, width),
        _varlen(scenario, layout, width),
        _decode(scenario, layout, width),
        _appended(layout, width),
    ]
    lines = [line for section in sections for line in (*section, BLANK)][:-1]
    for line in lines:
        # Everything is made to fit 100 columns; a narrower terminal loses ends of lines rather than their alignment.
        line.truncate(width, overflow="ellipsis")
    return lines


def _title(scenario: Scenario, layout: BatchLayout, width: int) -> list[Text]:
    append = "the new tokens join the cache" if layout.append else "nothing is appended: the keys are the cached ones"
    counts = [
        plural(layout.batch, "sequence"),
        plural(layout.total_q, "query token"),
        plural(layout.total_k, "key"),
        f"block size {layout.block_size}",
    ]
    return [
        *(Text(line, "bold underline") for line in textwrap.wrap(scenario.name, width)),
        *(Text(line, FAINT) for line in textwrap.wrap(scenario.about, width)),
        *(Text(line) for line in textwrap.wrap(f"{', '.join(counts)}; {append}", width)),
        *(Text(line) for line in textwrap.wrap(f"{_mask(scenario)}; {_heads(scenario)}", width)),
        *_blind_rows(layout),
        *(Text(line) for sentence in _beyond(scenario) for line in textwrap.wrap(sentence, width)),
    ]


def _beyond(scenario: Scenario) -> list[str]:
    """What a run does beyond the one step that the page draws."""
    sentences = []
    if scenario.steps > 1:
        sentences.append(f"{scenario.steps:,} steps are decoded one after the other; drawn is the first")
    if scenario.graph_capture_lens is not None:
        lens = short_list(scenario.graph_capture_lens, 60)
        sentences.append(f"captured in a CUDA graph with {lens} cached keys; drawn is the replay")
    if scenario.override.values:
        given = ", ".join(scenario.override.values)
        sentences.append(f"override: the kernel is handed another {given} than drawn here")
    return sentences


def _blind_rows(layout: BatchLayout) -> list[Text]:
    blind = int((layout.visible_from == layout.visible_to).sum())
    if not blind:
        return []
    verb = "sees" if blind == 1 else "see"
    return [Text(f"{blind:,} of {plural(layout.total_q, 'query token')} {verb} no key: exactly 0, LSE −inf")]


def _mask(scenario: Scenario) -> str:
    attention = scenario.attention
    left, right = attention.window_size
    kind = "causal, aligned bottom-right" if attention.causal else "not causal"
    if (left, right) == (UNLIMITED, UNLIMITED) or (attention.causal and left == UNLIMITED):
        return kind
    if attention.causal:
        return f"{kind}, window of {plural(left + 1, 'key')} (window_size [{left}, {right}])"
    return f"{kind}, window_size [{left}, {right}]"


def _heads(scenario: Scenario) -> str:
    attention = scenario.attention
    dtypes: list[str] = [attention.dtype]
    dtypes += [f"Q in {attention.q_dtype}"] if attention.q_dtype != attention.dtype else []
    dtypes += [f"K and V in {attention.kv_dtype}"] if attention.kv_dtype != attention.dtype else []
    heads = f"{plural(attention.num_heads, 'head')} on {plural(attention.num_kv_heads, 'KV head')}"
    return ", ".join([heads, *dtypes])


def _varlen(scenario: Scenario, layout: BatchLayout, width: int) -> list[Text]:
    query = strips.Names("Q request index", "cu_seqlens_q", "query tokens")
    keys = strips.Names("K request index", "cu_seqlens_k", "keys")
    return [
        heading("varlen path", "flash_attn_varlen_func on keys gathered by slot"),
        _array("cu_seqlens_q", layout.cu_seqlens_q, width),
        _array("cu_seqlens_k", layout.cu_seqlens_k, width),
        _value("max_seqlen_q", str(layout.max_seqlen_q)),
        _value("max_seqlen_k", str(layout.max_seqlen_k)),
        BLANK,
        *_shapes(scenario, layout, width),
        BLANK,
        *strips.strip(layout.cu_seqlens_q, query, width),
        BLANK,
        *strips.strip(layout.cu_seqlens_k, keys, width),
    ]


def _value(name: str, text: str) -> Text:
    """One of our arrays or numbers, with the guide's name for it where that is another."""
    guide = GUIDE_NAMES.get(name, name)
    beside = f"{BESIDE}{guide}" if guide != name else ""
    return Text.assemble(INDENT, name.ljust(NAME_WIDTH), f" = {text}", (beside, FAINT))


def _array(name: str, values: Int32Array | IntArray, width: int) -> Text:
    room = width - len(INDENT) - NAME_WIDTH - len(" = ") - len(BESIDE) - len(GUIDE_NAMES.get(name, ""))
    count = f"  ({len(values):,})"
    text = short_list(values.tolist() if len(values) < 200 else _ends(values), room - len(count))
    return _value(name, text + (count if "…" in text else ""))


def _ends(values: Int32Array | IntArray) -> list[int]:
    """Enough of a long array to be shortened: its first hundred, and its last."""
    return [*values[:100].tolist(), int(values[-1])]


def _shapes(scenario: Scenario, layout: BatchLayout, width: int) -> list[Text]:
    shape = shapes(scenario, layout)
    heads, kv_heads = "num_heads, head_dim]", "num_kv_heads, head_dim]"
    rows: list[tuple[str, Int32Array | IntArray, str, list[int]]] = [
        ("Q", layout.query_lens, heads, shape["q"]),
        ("K or V", layout.total_seqlens, kv_heads, shape["k"]),
    ]
    if shape["k"] != shape["v"]:
        rows[1:] = [
            ("K", layout.total_seqlens, kv_heads, shape["k"]),
            ("V", layout.total_seqlens, "num_kv_heads, head_dim_v]", shape["v"]),
        ]
    lines = []
    for name, lengths, rest, numbers in rows:
        room = width - len(INDENT) - 8 - len(f"[1, , {rest} = {numbers}")
        total = "+".join(map(str, lengths[:40].tolist())) or "0"
        if len(lengths) > 40 or len(total) > room:
            total = _short_sum(lengths, room)
        lines.append(Text.assemble(INDENT, (name.ljust(8), "bold"), f"[1, {total}, {rest} = {numbers}"))
    return lines


def _short_sum(lengths: Int32Array | IntArray, room: int) -> str:
    """`10+3+…+1`, in at most `room` characters."""
    last = f"+…+{int(lengths[-1])}"
    shown = ""
    for length in lengths[:40].tolist():
        longer = f"{shown}+{length}" if shown else str(length)
        if len(longer) + len(last) > room:
            break
        shown = longer
    return shown + last


def _decode(scenario: Scenario, layout: BatchLayout, width: int) -> list[Text]:
    table = f"({layout.batch}, {layout.max_blocks_per_seq}) int32, into a pool of {plural(layout.num_blocks, 'block')}"
    return [
        heading("decode path", _who_takes_it(layout)),
        _array("cache_seqlens", layout.cache_seqlens, width),
        *([_array("total_seqlens", layout.total_seqlens, width)] if layout.append else []),
        _value("block_table", table),
        *_matrix(layout),
        *([BLANK] if layout.batch else []),
        *grid.grid(layout, width),
        *_shared(layout),
    ]


def _who_takes_it(layout: BatchLayout) -> str:
    if layout.batch and layout.uniform_query_len is None:
        lengths = short_list(layout.query_lens[:200].tolist(), 30, brackets=("", ""))
        return f"cannot take this batch: query lengths differ ({lengths})"
    if (layout.uniform_query_len or 1) == 1:
        return "flash_attn_with_kvcache through the block table"
    return f"only by backends that take {layout.uniform_query_len} query tokens a sequence"


def _matrix(layout: BatchLayout) -> list[Text]:
    """The table in the guide's brackets, while it is small enough to be read as one."""
    rows, columns = layout.block_table.shape
    if not 0 < rows <= MATRIX_ROWS or columns > MATRIX_COLUMNS:
        return []
    cell = max(len(str(e)) for e in layout.block_table.reshape(-1).tolist()) if columns else 0
    if columns * (cell + 2) > 70:
        return []
    texts = ["[" + ", ".join(str(e).rjust(cell) for e in row) + "]" for row in layout.block_table.tolist()]
    joined = ["[" + texts[0], *(" " + t for t in texts[1:])]
    return [
        Text(INDENT + " " * (NAME_WIDTH + 3) + text + ("]" if i == rows - 1 else ","), shade(i))
        for i, text in enumerate(joined)
    ]


def _shared(layout: BatchLayout) -> list[Text]:
    """A remark on blocks that several sequences need."""
    live = layout.needed_blocks & ~layout.dead[:, None]
    ids, names = _counted(layout.block_table[live])
    shared = ids[names > 1].tolist()
    if not shared:
        return []
    verb = "is" if len(shared) == 1 else "are"
    what = "block" if len(shared) == 1 else "blocks"
    return [
        Text(f"{INDENT}{what} {short_list(shared, 50, brackets=('', ''))} {verb} shared by several sequences", FAINT)
    ]


def _counted(values: Int32Array) -> tuple[Int32Array, IntArray]:
    return np.unique(values, return_counts=True)


def _appended(layout: BatchLayout, width: int) -> list[Text]:
    if not layout.append:
        return [heading("new tokens", "none are appended")]
    if not layout.total_q:
        return [heading("new tokens", "there are none")]
    live = [BLANK, *writes.sentences(layout, width)]
    return [
        heading("new tokens", "slot = block × block size + offset   (write_slots, the guide's write_index)"),
        *writes.table(layout),
        *(live if len(live) > 1 else []),
    ]
