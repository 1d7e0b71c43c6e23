"""Other ways to the same answer: again, other blocks, padding, strides, batch mates, splits, the other path.

Each gives outputs, and says which of the base's rows theirs answer. What may differ is said here, what a difference
means is judged in `invariance.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pagedbench.backends.base import Output
from pagedbench.backends.execute import execute_again
from pagedbench.checks.answers import Answer
from pagedbench.checks.base import CheckContext
from pagedbench.checks.reorder import Rearranged, chosen, copies
from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.variants import moved, same_slots, widened, with_padding
from pagedbench.oracle.reference import attention_flops
from pagedbench.scenario.model import AUTO_SPLITS, Padding, Scenario
from pagedbench.tensors.bits import bits
from pagedbench.tensors.call import CallSpec
from pagedbench.tensors.compose import Variant, compose, is_plain
from pagedbench.tensors.fill import Fill
from pagedbench.tensors.identity import kept
from pagedbench.tensors.inputs import LogicalInputs
from pagedbench.tensors.prepare import Prepared, call_spec
from pagedbench.words import AttnPath

REPEATS_SMALL, REPEATS_LARGE = 20, 6
"""20 repeats let a noisy call in five through once in a hundred runs; large cells see a regular one in five."""

SMALL_FLOPS = {"cpu": 1e8, "cuda": 1e11}
EXTRA_COLUMNS = 3
SPLITS = (AUTO_SPLITS, 1, 3)
COPIES = 3
MOST_KEPT_BYTES = 4 << 20
WIDER = "wider table"
STRIDED = "q, new tokens and table as parts of wider tensors, whose strides are to be read"
_PADDINGS: tuple[Padding, ...] = (-1, 0, "num_blocks", "decoy")


@dataclass(frozen=True)
class Variation:
    """One other way. `bitwise`: the backend must give the same bits. `run` yields answers, each good until the next.

    `cell` is another cell of the run, whose budget and whose fault it is; None where the other way is this cell's.
    `may_refuse`: the backend may raise, which is then said and not held against it.
    """

    name: str
    bitwise: bool
    run: Callable[[], Iterator[Answer]]
    cell: CheckContext | None = None
    may_refuse: bool = False


def variations(context: CheckContext) -> Iterator[Variation]:
    """Those that apply to the cell and that the backend supports."""
    yield _repeats(context)
    if context.scenario.override.values:
        return  # arrays given on purpose fit this batch alone
    if context.path is not AttnPath.VARLEN:
        yield from _tables(context)
    yield from _strided(context)
    yield from _mates(context)
    yield from _splits(context)
    yield from _other_paths(context)


def not_applied(context: CheckContext) -> list[str]:
    """Variations that say nothing about the cell, each with the reason."""
    told = []
    if context.path is AttnPath.VARLEN:
        told.append("blocks, padding and width (this path has no block table)")
    if context.backend.traits_for(context.path).ignores_splits:
        told.append(f"splits ({context.backend.name} cuts keys as it likes)")
    return told


def _repeats(context: CheckContext) -> Variation:
    flops = attention_flops(context.layout, context.scenario.attention)
    small = flops <= SMALL_FLOPS.get(torch.device(context.device).type, SMALL_FLOPS["cpu"])

    times = max(REPEATS_SMALL if small else REPEATS_LARGE, context.scenario.repeats)

    def run() -> Iterator[Answer]:
        for output in execute_again(context.backend, context.prepare().call, times, context.plans):
            yield Answer(output)

    return Variation("repeats", context.backend.traits_for(context.path).repeatable, run)


def _tables(context: CheckContext) -> Iterator[Variation]:
    """The same keys through another table."""
    traits = context.backend.traits_for(context.path)
    cuts_stay = not traits.splits_from_capacity or context.scenario.attention.num_splits == 1
    for name, other in _other_tables(context.scenario, context.layout):
        if _supported(context, other):
            yield Variation(name, traits.repeatable and (name != WIDER or cuts_stay), _on(context, other))


@kept(0, many=4, small=lambda scenario, layout: layout.is_small)
def _other_tables(scenario: Scenario, layout: BatchLayout) -> list[tuple[str, BatchLayout]]:
    """The same batch through other tables, by name."""
    others: list[tuple[str, BatchLayout]] = []
    if layout.num_blocks > 1:
        others.append(("moved blocks", moved(layout, seed=1)))
    unused = np.arange(layout.max_blocks_per_seq) * layout.block_size >= layout.total_seqlens[:, None]
    others += [
        (f"padding {kind}", with_padding(layout, kind))
        for kind in (_PADDINGS if unused.any() else ())
        if kind != scenario.cache.padding and not (kind == 0 and layout.num_blocks == 0)
    ]
    others.append((WIDER, widened(layout, layout.max_blocks_per_seq + EXTRA_COLUMNS)))
    return others


def _on(context: CheckContext, layout: BatchLayout) -> Callable[[], Iterator[Answer]]:
    def run() -> Iterator[Answer]:
        yield Answer(context.execute(_prepared(context, layout)).output)

    return run


def _strided(context: CheckContext) -> Iterator[Variation]:
    """As an engine has them: q, k and v of the new tokens are parts of what one projection gave, and the table is the
    front of one for longer sequences. A kernel may want them dense, if it says so; it must not take them to be."""
    # A single row lies the same either way; and what is compiled anew for other strides cannot misread them.
    if context.layout.total_q < 2 or context.backend.traits_for(context.path).torch_compiled:
        return

    def run() -> Iterator[Answer]:
        prepared = context.prepare()
        call = prepared.call
        for name in ("q", "k_new", "v_new", "block_table"):
            dense = getattr(call, name)
            if dense is not None:
                setattr(call, name, _widened(dense))
        yield Answer(context.execute(prepared).output)

    # Not bit for bit: a library of matrix products may choose another one for other strides.
    yield Variation(STRIDED, False, run, may_refuse=True)


def _widened(dense: torch.Tensor) -> torch.Tensor:
    """A copy with the same numbers in the front of a tensor whose second dimension has one place more."""
    words = bits(dense)  # torch joins no fp8
    return torch.cat((words, words[:, :1]), 1)[:, : dense.shape[1]].view(dense.dtype)


def _mates(context: CheckContext) -> Iterator[Variation]:
    """Other sequences beside, or in another order; one and the same several times."""
    bitwise = context.backend.traits_for(context.path).batch_invariant
    for name, other in _other_batches(context.layout, context.inputs):
        if _supported(context, other.layout):
            yield Variation(name, bitwise, _rearranged(context, other))


def _few_numbers(layout: BatchLayout, inputs: LogicalInputs) -> bool:
    return layout.is_small and inputs.q.nbytes + inputs.k.nbytes + inputs.v.nbytes <= MOST_KEPT_BYTES


@kept(0, many=2, small=_few_numbers)
def _other_batches(layout: BatchLayout, inputs: LogicalInputs) -> list[tuple[str, Rearranged]]:
    """Sequences of the batch in other company, by name."""
    live = np.flatnonzero(~layout.dead & (layout.query_lens > 0)).tolist()
    if not live:
        return []
    longest = max(live, key=lambda sequence: int(layout.total_seqlens[sequence]))
    others: list[tuple[str, Rearranged]] = []
    if len(live) > 1:
        few = sorted({live[0], live[-1], longest})
        others += [
            (f"sequence {sequence} alone, without batch mates", chosen(layout, inputs, [sequence])) for sequence in few
        ]
        others.append(("batch in reverse order", chosen(layout, inputs, live[::-1])))
    others.append((f"sequence {longest} {COPIES} times in one batch", copies(layout, inputs, longest, COPIES)))
    return others


def _rearranged(context: CheckContext, other: Rearranged) -> Callable[[], Iterator[Answer]]:
    """Runs another batch; copies of a sequence answer one after the other."""

    def run() -> Iterator[Answer]:
        output = context.execute(_prepared(context, other.layout, other.inputs)).output
        times, lse = int(np.bincount(other.tokens).max()), output.lse
        for tokens in np.split(np.arange(len(other.tokens)), times):
            rows = slice(tokens[0], tokens[-1] + 1)
            yield Answer(Output(output.out[rows], None if lse is None else lse[rows]), other.tokens[rows])

    return run


def _prepared(context: CheckContext, layout: BatchLayout, inputs: LogicalInputs | None = None) -> Prepared:
    """A fresh call on one of these batches."""
    device = torch.device(context.device)
    composed = _composed(context.scenario, context.layout, context.inputs, context.poison, device)
    image = next((image for variant, image in composed if variant is layout), None)
    if image is None:
        return context.prepare_variant(layout, inputs)
    return context.prepare(layout=layout, inputs=inputs or context.inputs, image=image)


@kept(0, many=2, small=is_plain)
def _composed(
    scenario: Scenario, layout: BatchLayout, inputs: LogicalInputs, fill: Fill, device: torch.device
) -> list[tuple[BatchLayout, torch.Tensor]]:
    """Images of the batches whose memory is not the base's with another table, where they can be made at once."""
    if not is_plain(scenario, layout, inputs, fill, device):
        return []
    tokens, keys = np.arange(layout.total_q), np.arange(layout.total_k)
    tables = [other for _, other in _other_tables(scenario, layout) if not same_slots(other, layout)]
    variants = [Variant(other, tokens, keys) for other in tables]
    variants += [Variant(other.layout, other.tokens, other.keys) for _, other in _other_batches(layout, inputs)]
    images = compose(scenario, inputs, variants, device) if variants else []
    return [(variant.layout, image) for variant, image in zip(variants, images, strict=True)]


def _splits(context: CheckContext) -> Iterator[Variation]:
    if context.backend.traits_for(context.path).ignores_splits:
        return
    spec = call_spec(context.scenario, context.layout, context.path, context.device)
    for splits in SPLITS:
        changed = dataclasses.replace(spec, num_splits=splits)
        if splits != spec.num_splits and context.backend.unsupported(changed) is None:
            name = "splits chosen by the backend" if splits == AUTO_SPLITS else f"{splits} split(s)"
            yield Variation(name, False, _with_spec(context, changed))


def _with_spec(context: CheckContext, spec: CallSpec) -> Callable[[], Iterator[Answer]]:
    def run() -> Iterator[Answer]:
        prepared = context.prepare()
        prepared.call.spec = spec
        yield Answer(context.execute(prepared).output)

    return run


def _other_paths(context: CheckContext) -> Iterator[Variation]:
    """Decode against varlen and the like, where the backend has both."""
    for path in context.backend.paths:
        if path is not context.path and _supported(context, context.layout, path):
            other = _with_path(context, path)
            yield Variation(f"the {path} path", False, _on(other, context.layout), other)


def _with_path(context: CheckContext, path: AttnPath) -> CheckContext:
    other = dataclasses.replace(context, path=path)
    made = ["inputs", "reference", "_image"]  # the same on every path
    if context.backend.traits_for(path) == context.backend.traits_for(context.path):
        made.append("budget")
    other.__dict__ |= {name: context.__dict__[name] for name in made if name in context.__dict__}
    return other


def _supported(context: CheckContext, layout: BatchLayout, path: AttnPath | None = None) -> bool:
    spec = call_spec(context.scenario, layout, path or context.path, context.device)
    if spec.path is AttnPath.DECODE and spec.query_len is None:
        return False
    return context.backend.unsupported(spec) is None
