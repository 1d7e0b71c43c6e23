"""The file format: one pydantic model a section, strict, every field described.

The descriptions are the language's reference: the JSON Schema (editors) is made from them. Here stands only what can
be said of one field alone; what fields mean together is in `resolve.py`, how refusals read is in `refusals.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from pagedbench.scenario.model import Placement, Poison

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
MAX_SPLITS = 4096
INDEX_ARRAYS = ("cu_seqlens_q", "cu_seqlens_k", "cache_seqlens", "total_seqlens", "block_table")


@dataclass(frozen=True)
class Needs:
    """What a field takes, in words, where its type alone would read badly in a refusal."""

    words: str


class Section(BaseModel):
    """Base of all sections: strict types, no unknown keys, finite numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


Length = Annotated[int, Field(ge=0, le=MAX_INT32)]
Count = Annotated[int, Field(ge=1, le=MAX_INT32)]
Heads = Annotated[int, Field(ge=1, le=4096)]
HeadDim = Annotated[int, Field(ge=1, le=4096)]
Int32 = Annotated[int, Field(ge=-(2**31), le=MAX_INT32)]
Int64 = Annotated[int, Field(ge=-(2**63), le=MAX_INT64)]
Stride = Annotated[int, Field(ge=1, le=2**40)]
Side = Annotated[int, Field(ge=-1, le=MAX_INT32)]
FloatDtype = Literal["float16", "bfloat16", "float32"]
StoredDtype = Literal["float16", "bfloat16", "float32", "float8_e4m3fn"]
IndexType = Literal["int32", "int64"]
LayoutName = Literal["contiguous", "interleaved-kv", "layer-strided"]
ORDERED_FORMS: tuple[str, ...] = get_args(LayoutName)


class BatchSection(Section):
    """The lengths of the batch: either `query_lens` and `cached_lens`, or `spec`."""

    query_lens: list[Length] | None = Field(
        None, description="New tokens of each sequence; [] is a batch of no sequences, 0 a sequence without new tokens."
    )
    cached_lens: list[Length] | None = Field(
        None, description="Keys of each sequence that are in the cache before this step; as many as query_lens."
    )
    spec: str | None = Field(
        None,
        description=(
            "The batch in vLLM's grammar, in place of the two lists: 2q2k_32q1s4k is two prefills of 2,048 tokens and"
            " 32 decodes with 4,096 keys. s counts the keys after the step, or the cached ones with append: false."
        ),
    )
    append: bool = Field(
        True,
        description=(
            "Whether the new tokens' K and V join the cache in this step. With false the keys are exactly the cached"
            " ones."
        ),
    )
    padding_rows: Length = Field(
        0,
        description=(
            "Dead rows that a padded CUDA graph adds at the end: one query token, no cached keys, never judged."
        ),
    )


class StrideSection(Section):
    """Strides of one pool, in elements."""

    block: Stride = Field(description="Elements from one block to the next.")
    token: Stride = Field(description="Elements from one token to the next (with HND: within one head).")


class LayoutSection(Section):
    """How K and V lie in memory."""

    order: Literal["NHD", "HND"] = Field(
        "NHD", description="Order inside a block: (block_size, num_kv_heads, head_dim), or HND with heads first."
    )
    form: LayoutName = Field(
        "contiguous",
        description=(
            "contiguous: K and V apart, dense. interleaved-kv: halves of one tensor (num_blocks, 2, ...)."
            " layer-strided: one layer of a pool that holds several."
        ),
    )
    k_stride: StrideSection | None = Field(
        None, description="Strides of K; dense where it is left out. Not together with form."
    )
    v_stride: StrideSection | None = Field(
        None, description="Strides of V; dense where it is left out. Not together with form."
    )


class CacheSection(Section):
    """The paged cache: block size, block table or placement, and the pool."""

    block_size: Annotated[int, Field(ge=1, le=2**20)] = Field(description="Tokens in a block.")
    max_blocks_per_seq: Annotated[Length | Literal["tight"] | None, Needs("a whole number from 0, or tight")] = Field(
        None, description="Columns of the block table: a number, or tight for exactly as many as the batch needs."
    )
    num_blocks: Annotated[int, Field(ge=0, le=2**24)] | None = Field(
        None, description="Blocks in the pool; larger than the batch needs unless given. 0 is legal."
    )
    block_table: list[list[Int32]] | None = Field(
        None,
        description=(
            "Block ids of each sequence in order, −1 where nothing is allocated. Entries that hold a key some row can"
            " see, or a slot that is written, must be blocks of the pool; all others may be anything."
        ),
    )
    placement: Placement | None = Field(
        None,
        description=(
            "How blocks are chosen in place of a table. shuffled (the default, by inputs.seed), sequential, reversed,"
            " interleaved (round robin over sequences), fragmented (gaps between runs), high-ids (from 65,536 on),"
            " shared-prefix (sequences share the blocks of their common cached prefix)."
        ),
    )
    padding: Annotated[Int32 | Literal["num_blocks", "decoy"], Needs("a block id, −1, num_blocks or decoy")] = Field(
        -1,
        description=(
            "What stands in table entries beyond a sequence's blocks: −1, 0 or another id, num_blocks (one past the"
            " pool), or decoy, the id of a block that belongs to nobody."
        ),
    )
    trash_block: bool = Field(False, description="Keep one block for writes that nobody reads, as engines do.")
    layout: Annotated[
        LayoutName | LayoutSection, Needs(f"one of {', '.join(ORDERED_FORMS)}, or order, form, k_stride, v_stride")
    ] = Field("contiguous", description="How K and V lie in memory: a form's name, or a mapping.")


class AttentionSection(Section):
    """The mathematics and its dtypes. Heads and head dim come from `model` or are given; given ones win."""

    model: str | None = Field(None, description="A well-known model, by name: llama-3.1-8b.")
    tensor_parallel: Count | None = Field(
        None, description="Divides the model's heads over so many ranks; KV heads are replicated below one."
    )
    num_heads: Heads | None = Field(None, description="Query heads.")
    num_kv_heads: Heads | None = Field(None, description="KV heads; divides num_heads.")
    head_dim: HeadDim | None = Field(None, description="Channels of a query and key head.")
    head_dim_v: HeadDim | None = Field(None, description="Channels of a value head; head_dim unless given.")
    dtype: FloatDtype = Field("bfloat16", description="dtype of queries, keys, values and output.")
    q_dtype: StoredDtype | None = Field(None, description="dtype of the queries, where it is not dtype.")
    kv_dtype: StoredDtype | None = Field(None, description="dtype of K and V in the cache, where it is not dtype.")
    k_scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="What quantised keys are multiplied by; 1 unless given."
    )
    v_scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="What quantised values are multiplied by; 1 unless given."
    )
    causal: bool = Field(True, description="Query token i of q sees keys up to k − q + i: aligned to the bottom right.")
    window: Count | None = Field(
        None,
        description="Sliding window in keys, the token's own included; window_size: [window − 1, 0]. Needs causal.",
    )
    window_size: Annotated[
        Annotated[list[Side], Field(min_length=2, max_length=2)] | None, Needs("[left, right], −1 for unlimited")
    ] = Field(
        None,
        description="Sliding window as [left, right] keys, both ends inclusive, −1 for unlimited. Not beside window.",
    )
    softcap: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Scaled scores become softcap · tanh(score / softcap)."
    )
    sinks: Annotated[float | list[float] | None, Needs("a number, or one a head")] = Field(
        None, description="An unscaled logit a head that joins the denominator only: a number, or one a head."
    )
    softmax_scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="What scores are multiplied by; head_dim ** −0.5 unless given."
    )
    alibi: Annotated[bool | list[float] | None, Needs("true, false, or one slope a head")] = Field(
        None, description="ALiBi: true for the standard slopes, or one slope a head."
    )
    num_splits: Annotated[
        Annotated[int, Field(ge=1, le=MAX_SPLITS)] | Literal["auto"],
        Needs(f"a number from 1 to {MAX_SPLITS:,}, or auto"),
    ] = Field("auto", description="KV splits; auto is the library's choice, passed explicitly.")
    index_dtype: Annotated[
        IndexType | dict[str, IndexType], Needs(f"int32, int64, or one for each of {', '.join(INDEX_ARRAYS)}")
    ] = Field("int32", description="dtype of the index arrays: one for all, or a mapping with one an array.")


class DistributionSection(Section):
    """Random numbers of one input: offset + scale · sample."""

    distribution: Literal["normal", "uniform", "constant"] = Field(
        "normal", description="normal (mean 0, deviation 1), uniform (in [−1, 1)) or constant (1)."
    )
    scale: float = Field(1.0, description="What the sample is multiplied by.")
    offset: float = Field(0.0, description="What is added to it.")


class InputsSection(Section):
    """The numbers in Q, K and V, and in the slots that must not be read."""

    seed: Annotated[int, Field(ge=0, le=2**53)] = Field(0, description="Seed of numbers and placement.")
    q: DistributionSection = Field(default_factory=DistributionSection, description="Queries.")
    k: DistributionSection = Field(default_factory=DistributionSection, description="Keys.")
    v: DistributionSection = Field(default_factory=DistributionSection, description="Values.")
    identical_rows: bool = Field(
        False, description="All sequences get the same numbers, so that equal lengths must give equal results."
    )
    poison: Poison = Field("nan", description="What fills the slots that must not be read.")


class GraphSection(Section):
    """A CUDA graph that is captured at other lengths than it is replayed with."""

    capture_lens: list[Length] = Field(description="cached_lens at capture, one a sequence (padding rows left out).")


class OverrideSection(Section):
    """Arrays and numbers handed to the kernel in place of the right ones, on purpose."""

    cu_seqlens_q: list[Int64] | None = Field(None, description="In place of the cumulative query lengths.")
    cu_seqlens_k: list[Int64] | None = Field(None, description="In place of the cumulative key lengths.")
    cache_seqlens: list[Int64] | None = Field(None, description="In place of the keys before the new tokens.")
    total_seqlens: list[Int64] | None = Field(None, description="In place of the keys after the new tokens.")
    block_table: list[list[Int64]] | None = Field(None, description="In place of the block table.")
    write_slots: list[Int64] | None = Field(
        None,
        description="In place of the slots of the new tokens; −1 for one that is not written, an engine's padding.",
    )
    read_slots: list[Int64] | None = Field(None, description="In place of the slots that are gathered.")
    max_seqlen_q: Int64 | None = Field(None, description="In place of the longest query.")
    max_seqlen_k: Int64 | None = Field(None, description="In place of the longest sequence of keys.")
    oracle: Literal["intended", "as-given"] = Field(
        "intended", description="Whether the oracle answers for the right arrays or for the overridden ones."
    )


class EqualsSection(Section):
    """Another variant of this scenario that must give the same output."""

    variant: str = Field(description="Its name, whole or only what stands in the brackets.")
    within: Literal["bitwise", "budget"] = Field("budget", description="Bit for bit, or within the error budget.")


# What is printed to a terminal as it stands: an escape sequence in a file from elsewhere must not reach it.
_PLAIN = r"[^\x00-\x08\x0b-\x1f\x7f-\x9f]"
Reason = Annotated[Annotated[str, Field(pattern=f"^{_PLAIN}+$")] | None, Needs("a reason, without control characters")]


class ExpectSection(Section):
    """A known outcome: exactly one of the three, with the reason."""

    skip: Reason = Field(None, description="The backend cannot do this, because …")
    raises: Reason = Field(None, description="The backend raises an error, because …")
    fail: Reason = Field(None, description="The backend is wrong, because …")


class ScenarioDocument(Section):
    """One scenario, or with a matrix several variants of it."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100),
        Needs("letters, digits, '.', '_' and '-', beginning with a letter or digit"),
    ] = Field(description="What the scenario is called; unique in a run.")
    about: Annotated[str, Field(max_length=1000, pattern=f"^{_PLAIN}*$"), Needs("text without control characters")] = (
        Field("", description="A sentence that says what it is for.")
    )
    batch: BatchSection = Field(description="The lengths of the batch.")
    cache: CacheSection = Field(description="The paged cache.")
    attention: AttentionSection = Field(description="The mathematics and its dtypes.")
    inputs: InputsSection = Field(default_factory=InputsSection, description="The numbers.")
    steps: Annotated[int, Field(ge=1, le=10_000)] = Field(1, description="Decode so many tokens, checked at each step.")
    repeats: Annotated[int, Field(ge=1, le=10_000)] = Field(1, description="Make the call so many times.")
    graph: GraphSection | None = Field(None, description="Capture at one set of lengths, replay at the scenario's.")
    override: OverrideSection | None = Field(None, description="Wrong arrays, on purpose.")
    expect: dict[str, ExpectSection] = Field(
        default_factory=dict, description="Known outcomes by BACKEND or BACKEND:PATH."
    )
    equals: EqualsSection | None = Field(None, description="A variant that must give the same output.")
    matrix: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default_factory=dict,
        description=(
            "Fields by dotted path, each with a list of values: one variant for each combination. null leaves the"
            " field out."
        ),
    )
