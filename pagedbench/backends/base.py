"""What a backend is: the contract between pagedbench and a library or a kernel.

How the paths are driven (write, gather, attention) is in `execute.py`; which backends exist is in `registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath

EmptyRows = Literal["zero", "untouched"]
NanContract = Literal["clean", "may-leak"]


@dataclass(frozen=True)
class Availability:
    """Whether the library can run on a device, and if not, why, in a sentence that a user can act on."""

    available: bool
    version: str | None = None
    reason: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Traits:
    """What an adapter declares of its library; checks hold it to this.

    `repeatable`: equal calls give equal bits. `appends`: the decode path writes the new tokens itself; where it does
    not, the tool writes them first and says so. `returns_lse`; `lse_note` says what the adapter converts.
    `out`: the kernel writes into `Call.out`. `batch_invariant`: a sequence's result does not depend on its batch mates.
    `score_rounding`: scores are rounded to the input dtype before the softmax (one more term in the budget);
    `p_dtype`: the dtype that the weights have in the product with V, where it is not the dtype of V.
    `tanh_error`: relative error of the tanh in softcap (2⁻¹¹ for the GPU's own instruction), one more term too.
    `exp_error`: relative error of an exponential, where it is a polynomial (2⁻¹³ for one of the third degree).
    `alibi_from_start`: causal ALiBi is counted from the first key (slope * j), and the LSE brought back afterwards.
    `fp8_score_error`: relative error of a score where q and K are both fp8 (tensor cores that add such products with
    few bits), another one. `sum_of_rounded_weights`: the softmax denominator is the sum of the weights after they were
    rounded for the product with V (to `p_dtype`, or to the call's dtype), which the LSE then shows.
    `rounded_partials`: what the splits of the keys give is rounded to the output's dtype before it is joined.
    `ignores_splits`: a number of splits is taken, and changes nothing.
    `splits_from_capacity`: where the keys are cut into splits depends on how many the table has room for, so a wider
    one changes the order of sums.
    `nan_regions`: by region of slots that must not be read, whether NaN there may leak (0 * NaN inside an edge tile);
    keys are the regions of `layout/regions.py` in lower case, `"hidden.v"` for V alone; absent ones are clean.
    `compile_seconds`: the most that a first call may spend compiling; time-outs allow for it. `torch_compiled`: what
    `torch.compile` makes, and makes again for each state of torch's global switches, such as its deterministic mode.
    `graph_safe`: a call can be captured in a CUDA graph. `graph_lengths`: a captured call follows the index arrays that
    it is replayed with; not so where a host plan has the lengths baked in. `graph_table`: likewise for the block table.
    """

    repeatable: bool = True
    appends: bool = True
    returns_lse: bool = True
    lse_note: str = "natural logarithm, (total_q, num_heads)"
    out: bool = False
    batch_invariant: bool = False
    score_rounding: bool = False
    p_dtype: str | None = None
    tanh_error: float = 0.0
    exp_error: float = 0.0
    alibi_from_start: bool = False
    fp8_score_error: float = 0.0
    sum_of_rounded_weights: bool = False
    rounded_partials: bool = False
    ignores_splits: bool = False
    splits_from_capacity: bool = False
    empty_rows: EmptyRows = "zero"
    nan_regions: Mapping[str, NanContract] = field(default_factory=dict)
    compile_seconds: float = 0.0
    torch_compiled: bool = False
    graph_safe: bool = True
    graph_lengths: bool = True
    graph_table: bool = True


class Output:
    """`out` `(total_q, num_heads, head_dim_v)`; `lse` `(total_q, num_heads)` fp32, natural logarithm, −inf for rows
    that see no key, or None where the backend returns none.

    An adapter whose library has another form gives `lse` as a function that converts it. It runs when somebody looks,
    each time anew: the conversion is ours and must not be timed as the library's, and the replay of a graph changes
    what the library's tensor holds.
    """

    def __init__(self, out: torch.Tensor, lse: torch.Tensor | Callable[[], torch.Tensor] | None = None) -> None:
        self.out = out
        self._lse = lse

    @property
    def lse(self) -> torch.Tensor | None:
        """The log-sum-exp, converted now where that is needed."""
        return self._lse if self._lse is None or isinstance(self._lse, torch.Tensor) else self._lse()

    @lse.setter
    def lse(self, value: torch.Tensor | None) -> None:
        self._lse = value


class Backend:
    """A library that computes one or more paths. Subclasses override their paths, and `available`, `unsupported`.

    `plan` is host work that a library wants before the calls of a step (its cost is reported apart); what it returns is
    handed to the path's function. Path functions must not synchronise.
    """

    name: str = ""
    library: str = ""
    about: str = ""
    traits: Traits = Traits()
    _source: str = ""

    def available(self, device: str) -> Availability:
        """Whether the library is there and runs on `device` (`"cpu"` or `"cuda"`). Never raises. The default is for a
        backend that needs none: it is there."""
        return Availability(True)

    def unsupported(self, spec: CallSpec) -> str | None:
        """Why this call cannot be made, as a sentence that names what is needed, or None if it can."""
        return None

    def traits_for(self, path: AttnPath) -> Traits:
        """The traits on one path, where a library's functions differ."""
        return self.traits

    def plan(self, call: Call) -> Any:
        """Host work before the call."""
        return None

    def plan_key(self, call: Call) -> Hashable | None:
        """All that a plan of `plan` depends on, where that is lengths and facts alone: calls with equal keys may share
        one, as the layers of a model do. None where each call needs its own."""
        return None

    def varlen(self, call: Call, plan: Any) -> Output:
        """Ragged queries on contiguous keys (`call.k`, `call.v`)."""
        raise NotImplementedError

    def decode(self, call: Call, plan: Any) -> Output:
        """The same number of query tokens for each sequence, through the block table, appending in place."""
        raise NotImplementedError

    def paged_varlen(self, call: Call, plan: Any) -> Output:
        """Ragged queries through the block table."""
        raise NotImplementedError

    @property
    def source(self) -> str:
        """What `find_backend` finds this backend by in another process: its name, or the file of a user's own."""
        return self._source or self.name

    @property
    def paths(self) -> tuple[AttnPath, ...]:
        """The paths that this backend has: those whose function it overrides."""
        return tuple(p for p, name in PATH_METHODS.items() if getattr(type(self), name) is not getattr(Backend, name))


PATH_METHODS = {
    AttnPath.VARLEN: "varlen",
    AttnPath.DECODE: "decode",
    AttnPath.PAGED_VARLEN: "paged_varlen",
}
