"""A scenario after loading: every default filled in, every short form resolved, one value for one meaning.

Plain frozen dataclasses, no torch and no pydantic, so that later stages depend on meanings and not on the file format.
The file format, its validation and its positions are in `document.py` and `loader.py`; index arithmetic is in
`layout/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pagedbench.errors import Problem

Dtype = Literal["float16", "bfloat16", "float32", "float8_e4m3fn"]
IndexDtype = Literal["int32", "int64"]
Placement = Literal["shuffled", "sequential", "reversed", "interleaved", "fragmented", "high-ids", "shared-prefix"]
Padding = int | Literal["num_blocks", "decoy"]
Poison = Literal["none", "nan", "inf", "large"]
LARGEST: Mapping[str, float] = {
    "float16": 65504.0,
    "bfloat16": (2 - 2**-7) * 2.0**127,
    "float32": (2 - 2**-23) * 2.0**127,
}
"""The largest finite number of each dtype in which overflow is inf."""
AUTO_SPLITS = 0
UNLIMITED = -1


@dataclass(frozen=True)
class Origin:
    """Where a scenario was written. `positions` maps a field (`"cache.block_table[1][0]"`) to (line, column) from 1."""

    file: str = ""
    positions: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def where(self, field_path: str) -> str:
        """`file:line:column` of the field, or of the nearest enclosing one that was written; empty if made in code."""
        if not self.file:
            return ""
        path = field_path
        while path and path not in self.positions:
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        line, column = self.positions.get(path, (1, 1))
        return f"{self.file}:{line}:{column}"


@dataclass(frozen=True)
class Batch:
    """Lengths of the batch. Padding rows are the last `padding_rows` of both tuples (1 query token, 0 cached)."""

    query_lens: tuple[int, ...]
    cached_lens: tuple[int, ...]
    append: bool = True
    padding_rows: int = 0

    @property
    def size(self) -> int:
        """Sequences, padding rows included."""
        return len(self.query_lens)


@dataclass(frozen=True)
class PoolLayout:
    """How K and V lie in memory, in elements.

    `form`: `contiguous` (K and V apart), `interleaved-kv` (one tensor `(num_blocks, 2, ...)`), `layer-strided` (one
    layer of a pool that holds several), or `strided` when `k_stride`/`v_stride` give (block stride, token stride).
    `order` is the order of the two inner dimensions: NHD `(block_size, num_kv_heads, head_dim)`, HND with the first two
    swapped. With NHD the head stride is head_dim; with HND the token stride given is within one head.
    """

    order: Literal["NHD", "HND"] = "NHD"
    form: Literal["contiguous", "interleaved-kv", "layer-strided", "strided"] = "contiguous"
    k_stride: tuple[int, int] | None = None
    v_stride: tuple[int, int] | None = None


@dataclass(frozen=True)
class Cache:
    """The paged cache. `None` for `num_blocks` or `max_blocks_per_seq` lets `layout/` choose; it resolves `tight`."""

    block_size: int
    max_blocks_per_seq: int | Literal["tight"] | None = None
    num_blocks: int | None = None
    block_table: tuple[tuple[int, ...], ...] | None = None
    placement: Placement = "shuffled"
    padding: Padding = -1
    trash_block: bool = False
    layout: PoolLayout = PoolLayout()


@dataclass(frozen=True)
class Attention:
    """The mathematics, and the dtypes it is done in.

    `window_size` is (left, right), both ends inclusive, −1 unlimited. `softcap` and `sinks` are None when off.
    `num_splits` is 0 for the backend's own choice, passed explicitly. `model` names the row of the model table used.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    dtype: Dtype = "bfloat16"
    q_dtype: Dtype = "bfloat16"
    kv_dtype: Dtype = "bfloat16"
    k_scale: float = 1.0
    v_scale: float = 1.0
    causal: bool = True
    window_size: tuple[int, int] = (UNLIMITED, UNLIMITED)
    softcap: float | None = None
    sinks: tuple[float, ...] | None = None
    softmax_scale: float = 1.0
    alibi_slopes: tuple[float, ...] | None = None
    num_splits: int = AUTO_SPLITS
    index_dtype: Mapping[str, IndexDtype] = field(default_factory=dict)
    model: str | None = None

    @property
    def group_size(self) -> int:
        """Query heads for one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def heads_told(self) -> str:
        """`32/8 heads, head dim 128`: what a time has to say it is of."""
        return f"{self.num_heads}/{self.num_kv_heads} heads, head dim {self.head_dim}"


@dataclass(frozen=True)
class Distribution:
    """Random values of one input: `offset + scale * sample`."""

    distribution: Literal["normal", "uniform", "constant"] = "normal"
    scale: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True)
class Inputs:
    """How numbers are made. `poison` fills every slot that must not be read."""

    seed: int = 0
    q: Distribution = Distribution()
    k: Distribution = Distribution()
    v: Distribution = Distribution()
    identical_rows: bool = False
    poison: Poison = "nan"


@dataclass(frozen=True)
class Override:
    """Arrays and numbers handed to the kernel in place of the right ones, on purpose.

    `values` maps a `Call` field name (`cu_seqlens_q`, `max_seqlen_k`, `block_table`, ...) to nested tuples or a number.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    oracle: Literal["intended", "as-given"] = "intended"


@dataclass(frozen=True)
class Expectation:
    """A known outcome of one target (`backend` or `backend:path`)."""

    target: str
    outcome: Literal["skip", "raises", "fail"]
    because: str


@dataclass(frozen=True)
class Equals:
    """This scenario must give the same output as the variant of that name."""

    variant: str
    within: Literal["bitwise", "budget"] = "budget"


@dataclass(frozen=True)
class Scenario:
    """One batch, one cache, one attention: what is put before a kernel.

    `name` is unique within a run and includes the variant (`edge-padding[cache.padding=0]`); `steps`, `repeats` and
    `graph_capture_lens` are 1, 1 and None unless the file asks for more.
    """

    name: str
    about: str
    batch: Batch
    cache: Cache
    attention: Attention
    inputs: Inputs = Inputs()
    steps: int = 1
    repeats: int = 1
    graph_capture_lens: tuple[int, ...] | None = None
    override: Override = Override()
    expect: tuple[Expectation, ...] = ()
    equals: Equals | None = None
    variant: Mapping[str, object] = field(default_factory=dict)
    origin: Origin = Origin()

    def problem(self, field_path: str, found: object, needed: str, hint: str | None = None) -> Problem:
        """A `Problem` of this scenario with its place in the file."""
        return Problem(field_path, str(found), needed, hint, self.origin.where(field_path))
