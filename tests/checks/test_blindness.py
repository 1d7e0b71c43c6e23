"""What a scenario cannot show is said beside a pass, with what to change; what it can show is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagedbench.checks.blindness import blindness, unreached
from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import Distribution, Inputs, Override, Scenario
from pagedbench.words import AttnPath
from tests.tensors.cells import docs_decode, scenario


def warnings(wanted: Scenario) -> list[str]:
    return blindness(wanted, build_layout(wanted))


def windowed(width: int) -> Scenario:
    return scenario(attention={"window_size": (width - 1, 0)})


@pytest.mark.parametrize(
    "wanted",
    [
        docs_decode(),
        windowed(20),
        scenario(attention={"softcap": 1.0}),
        scenario(attention={"sinks": (3.0,) * 4}),
    ],
    ids=["the guide's", "window", "softcap", "sinks"],
)
def test_a_scenario_that_can_show_what_it_is_made_for_is_not_warned_about(wanted: Scenario) -> None:
    assert warnings(wanted) == []


def test_where_there_is_no_output_none_can_be_wrong() -> None:
    assert warnings(scenario((0,), (9,))) == [
        "BLIND: there is no query token, so no output can be wrong; give a sequence one"
    ]


@pytest.mark.parametrize(
    ("wanted", "fault", "change"),
    [
        (scenario((1, 1), (3, 7)), "fits into one block", "more than 32 keys"),
        (scenario(cache={"placement": "sequential"}), "linear", "placement: shuffled"),
        (scenario((1, 1), (63, 31)), "inside a block", "no multiple of 32"),
        (windowed(100), "window of 100 keys hides none", "longer than 100"),
        (
            scenario(attention={"window_size": (-1, 100), "causal": False}),
            "window [-1, 100] hides none of the keys",
            "longer than 101",
        ),
        (scenario((1, 1), (0, 70), attention={"sinks": (-9.0,) * 4}), "beside 1 key;", "attention.sinks near"),
        (scenario(attention={"softcap": 1000.0}), "softcap of 1000", "inputs.q.scale"),
        (scenario(attention={"sinks": (-9.0,) * 4}), "no visible share", "attention.sinks near"),
        (scenario(attention={"num_splits": 8}), "8 splits", "longer"),
        (scenario(inputs=Inputs(v=Distribution("uniform", 0.25, 0.75))), "one sign", "inputs.v.offset"),
        (scenario(inputs=Inputs(q=Distribution(scale=0.0))), "nearly equal", "inputs.q.scale"),
        (scenario(inputs=Inputs(poison="none")), "plausible", "leaks"),
    ],
)
def test_a_blind_scenario_is_told_what_to_change(wanted: Scenario, fault: str, change: str) -> None:
    (said,) = warnings(wanted)
    assert said.startswith("BLIND: ")
    assert fault in said
    assert change in said


def test_the_advice_on_sinks_is_good_advice() -> None:
    """The level that is suggested is one at which the warning is gone."""
    wanted = scenario(attention={"sinks": (-9.0,) * 4})
    level = float(warnings(wanted)[0].rsplit(" ", 1)[1])
    better = replace(wanted, attention=replace(wanted.attention, sinks=(level,) * 4))
    assert warnings(better) == []


@pytest.mark.parametrize(
    ("array", "path", "appends", "lost"),
    [
        ("block_table", AttnPath.VARLEN, False, True),  # its keys were gathered before the call
        ("cache_seqlens", AttnPath.VARLEN, False, True),
        ("write_slots", AttnPath.VARLEN, True, False),
        ("block_table", AttnPath.DECODE, True, False),
        ("write_slots", AttnPath.DECODE, True, True),  # a kernel that appends goes by the table
        ("write_slots", AttnPath.DECODE, False, False),
        ("read_slots", AttnPath.PAGED_VARLEN, False, True),
        ("max_seqlen_k", AttnPath.DECODE, True, False),
    ],
)
def test_an_override_that_no_kernel_sees_is_said_so(array: str, path: AttnPath, appends: bool, lost: bool) -> None:
    said = unreached(Override({array: 1}), path, appends)
    assert bool(said) is lost
    assert all(s.startswith(f"BLIND: the override of {array} does not reach the {path} path") for s in said)
