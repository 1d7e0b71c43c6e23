"""The batch that a scenario's `override` describes, for an oracle that takes wrong arrays at their word.

Keys are whatever stands where the given arrays point after the append. Arrays that describe no batch have no answer.
"""

from __future__ import annotations

import torch

from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.given import NoBatch, layout_as_given
from pagedbench.oracle.reference import NoReference
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.fill import Fill
from pagedbench.tensors.inputs import LogicalInputs
from pagedbench.tensors.pool import take_slots
from pagedbench.tensors.prepare import prepare
from pagedbench.words import AttnPath


def as_given(
    scenario: Scenario,
    layout: BatchLayout,
    inputs: LogicalInputs,
    path: AttnPath,
    device: torch.device | str,
    fill: Fill | None = None,
) -> tuple[LogicalInputs, BatchLayout]:
    """Inputs and layout of the batch as the override has it, on memory filled so; NoReference if there is no such."""
    try:
        given = layout_as_given(scenario, layout, paged=path is not AttnPath.VARLEN)
    except NoBatch as error:
        raise NoReference(error.message) from error
    if given.total_q != layout.total_q:
        raise NoReference(f"the overridden lengths describe no batch of {layout.total_q} query tokens")
    pool = prepare(scenario, layout, inputs, path, device, fill=fill).expected().pool
    read = given.read_slots[: given.total_k]
    if len(read) < given.total_k or ((read < 0) | (read >= pool.shape.slots)).any():
        raise NoReference("the overridden arrays point outside the pool")
    index = torch.from_numpy(read).to(device)
    return LogicalInputs(inputs.q, take_slots(pool.k, index), take_slots(pool.v, index)), given
