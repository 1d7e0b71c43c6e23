"""The shipped scenarios: all load, each says what it is for, and what issue and guide list is among them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
import torch

from pagedbench.layout.build import build_layout
from pagedbench.layout.steps import at_last_step
from pagedbench.scenario.catalog import ShippedScenario, shipped
from pagedbench.scenario.loader import load_scenarios
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.inputs import random_inputs

FOLDERS = ("docs", "edge", "features", "models", "long")
SHIPPED = shipped()


@pytest.fixture(scope="module")
def everything() -> list[Scenario]:
    return load_scenarios(FOLDERS)


def of_document(everything: list[Scenario], name: str) -> list[Scenario]:
    return [scenario for scenario in everything if scenario.name.partition("[")[0] == name]


FEATURES: dict[str, Callable[[Scenario], bool]] = {
    "several query tokens": lambda scenario: min(scenario.batch.query_lens, default=0) > 1,
    "window": lambda scenario: scenario.attention.window_size != (-1, -1),
    "softcap": lambda scenario: scenario.attention.softcap is not None,
    "sinks": lambda scenario: scenario.attention.sinks is not None,
    "ALiBi": lambda scenario: scenario.attention.alibi_slopes is not None,
    "fp8": lambda scenario: scenario.attention.kv_dtype.startswith("float8"),
    "HND": lambda scenario: scenario.cache.layout.order == "HND",
    "not causal": lambda scenario: not scenario.attention.causal,
    "narrower V": lambda scenario: scenario.attention.head_dim_v < scenario.attention.head_dim,
    "nothing cached": lambda scenario: 0 in scenario.batch.cached_lens,
}
# What is new to decode alone, and what no library has together: ALiBi is of older models than fp8.
APART = [{"narrower V", other} for other in ("softcap", "sinks", "ALiBi", "fp8", "HND")]
APART += [{"not causal", other} for other in ("ALiBi", "fp8", "HND")]
APART += [{"not causal", "narrower V"}, {"narrower V", "window"}, {"ALiBi", "fp8"}, {"ALiBi", "HND"}]


def test_there_are_forty_and_more_in_five_folders() -> None:
    assert {entry.folder for entry in SHIPPED} == set(FOLDERS)
    assert len(SHIPPED) >= 40


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.name)
def test_each_is_named_for_its_folder_and_says_what_it_is_for(entry: ShippedScenario) -> None:
    assert entry.name.startswith(f"{entry.folder}-")
    assert entry.about.endswith(".")
    assert 30 <= len(entry.about) <= 140
    assert entry.text().count("name: ") == 1


def test_the_catalog_counts_the_variants_that_load(everything: list[Scenario]) -> None:
    for entry in SHIPPED:
        assert len(of_document(everything, entry.name)) == entry.variants


def test_the_guides_decode_example() -> None:
    (scenario,) = load_scenarios(["docs-decode"])
    layout = build_layout(scenario)
    assert layout.cache_seqlens.tolist() == [30, 32, 70]
    assert layout.block_table.tolist() == [[2, -1, -1, -1], [0, 1, -1, -1], [3, 5, 6, -1]]


def test_the_guides_varlen_example_in_both_readings() -> None:
    as_printed, as_run = load_scenarios(["docs-varlen", "docs-varlen-append"])
    assert build_layout(as_printed).cu_seqlens_q.tolist() == [0, 10, 13, 14]
    assert build_layout(as_printed).cu_seqlens_k.tolist() == [0, 0, 1, 8]
    assert build_layout(as_run).cu_seqlens_k.tolist() == [0, 10, 14, 22]


def test_block_boundaries_are_met_from_both_sides(everything: list[Scenario]) -> None:
    (scenario,) = of_document(everything, "edge-block-boundaries")
    totals = build_layout(scenario).total_seqlens.tolist()
    size = scenario.cache.block_size
    assert {total - size for total in totals} >= {-1, 0, 1}
    assert {total - 2 * size for total in totals} >= {-1, 0, 1}


def test_what_the_edges_cover(everything: list[Scenario]) -> None:
    edge = [scenario for scenario in everything if scenario.name.startswith("edge-")]
    assert {1, 3, 16, 48, 192, 256} <= {scenario.cache.block_size for scenario in edge}
    assert {64, 80, 96, 128, 192, 256} <= {scenario.attention.head_dim for scenario in edge}
    assert {1, 4, 7, 8, 16} <= {scenario.attention.group_size for scenario in edge}
    assert {-1, 0, "num_blocks", "decoy"} <= {scenario.cache.padding for scenario in edge}
    assert any(scenario.batch.size == 0 for scenario in edge)
    assert any(0 in scenario.batch.query_lens for scenario in edge)
    assert any(build_layout(scenario).block_table.max(initial=0) >= 65_536 for scenario in edge)
    assert max(scenario.attention.num_kv_heads for scenario in edge) > 32
    assert max(scenario.attention.num_heads for scenario in edge) > 64
    assert any(
        scenario.attention.group_size * max(scenario.batch.query_lens) > 128 for scenario in edge if scenario.batch.size
    )
    assert max(build_layout(scenario).block_table.shape[1] for scenario in edge) > 2**15
    assert {64, 65, 129, 257} <= {q for scenario in edge for q in scenario.batch.query_lens}


@pytest.mark.parametrize("apart", [8, 16, 32, 64])
def test_sequences_that_an_index_cut_short_confuses_differ_in_length(everything: list[Scenario], apart: int) -> None:
    """The 70 sequences fill more than one tile of 64; a kernel that takes the length of another one is seen."""
    (scenario,) = of_document(everything, "edge-many-sequences")
    totals = build_layout(scenario).total_seqlens
    assert len(totals) == 70
    assert (totals[apart:] != totals[:-apart]).any()


@pytest.mark.parametrize(("variant", "exponential"), [(0, torch.inf), (1, 0.0)])
def test_large_scores_need_the_maximum_taken_off(everything: list[Scenario], variant: int, exponential: float) -> None:
    scenario = of_document(everything, "edge-large-scores")[variant]
    inputs = random_inputs(scenario, build_layout(scenario), "cpu")
    heads = torch.arange(4) // 2
    scores = torch.einsum("qhd,khd->hqk", inputs.q.float(), inputs.k.float()[:, heads]) / 8
    assert (torch.exp(scores).flatten(1) == exponential).all()
    assert scores.softmax(-1).amax(-1).median() < 0.99  # not one-hot, so that weights matter, too


def test_a_window_is_tried_on_rows_that_see_nothing(everything: list[Scenario]) -> None:
    (scenario,) = of_document(everything, "features-window-blind-rows")
    layout = build_layout(scenario)
    blind = layout.visible_to <= layout.visible_from
    assert blind.any()
    assert not blind.all()


def test_what_the_features_cover(everything: list[Scenario]) -> None:
    features = [scenario for scenario in everything if scenario.name.startswith("features-")]
    assert {14, 15, 16} <= {scenario.attention.window_size[0] for scenario in features}
    assert {2, 3, 4, 5, 8} <= {q for s in features if "speculative" in s.name for q in s.batch.query_lens}
    assert {"NHD", "HND"} == {scenario.cache.layout.order for scenario in features}
    assert any(scenario.attention.softcap for scenario in features)
    assert any(scenario.attention.sinks for scenario in features)
    prefill = [scenario for scenario in features if max(scenario.batch.query_lens) > 16]
    assert {"bfloat16", "float16", "float32"} <= {scenario.attention.dtype for scenario in prefill}
    assert any(scenario.attention.kv_dtype == "float8_e4m3fn" for scenario in features)
    assert any(scenario.attention.alibi_slopes for scenario in features)
    assert any(scenario.steps > 1 for scenario in features)
    assert any(scenario.graph_capture_lens for scenario in features)


def test_the_steps_open_blocks_after_the_first(everything: list[Scenario]) -> None:
    """Keys 13 to 18, 16 to 21 and 19 to 24 with blocks of 16: two sequences reach their 17th key after step one."""
    (scenario,) = of_document(everything, "features-steps")
    first, last = build_layout(scenario).total_seqlens, build_layout(at_last_step(scenario)).total_seqlens
    assert (-(-last // 16) > -(-first // 16)).tolist() == [True, True, False]


def test_long_means_131072_and_1048576_keys(everything: list[Scenario]) -> None:
    totals = {build_layout(s).max_seqlen_k for s in everything if s.name.startswith("long-decode")}
    assert {131_072, 1_048_576} <= totals


def test_edges_and_features_stay_small_enough_for_a_cpu(everything: list[Scenario]) -> None:
    for scenario in everything:
        if not scenario.name.startswith(("edge-", "features-")):
            continue
        layout, attention = build_layout(scenario), scenario.attention
        scores = int((layout.visible_to - layout.visible_from).sum()) * attention.num_heads
        pool = layout.num_blocks * layout.block_size * attention.num_kv_heads * attention.head_dim
        assert scores <= 100_000, scenario.name
        assert pool <= 2**27, scenario.name


@pytest.mark.parametrize("pair", [p for p in combinations(FEATURES, 2) if set(p) not in APART], ids=" and ".join)
def test_two_features_are_together_in_a_batch_that_decode_takes(
    everything: list[Scenario], pair: tuple[str, str]
) -> None:
    both = [scenario for scenario in everything if all(FEATURES[feature](scenario) for feature in pair)]
    assert any(len(set(scenario.batch.query_lens)) == 1 for scenario in both)


def test_there_are_more_sequences_and_heads_than_a_block_of_threads_counts(everything: list[Scenario]) -> None:
    assert max(len(scenario.batch.query_lens) for scenario in everything) > 1024
    assert max(scenario.attention.num_heads for scenario in everything) > 128
    assert max(scenario.attention.num_kv_heads for scenario in everything) > 64


TILE = 64


@pytest.mark.parametrize("feature", ["window", "softcap", "sinks", "ALiBi", "fp8", "not causal", "narrower V"])
def test_a_feature_meets_a_second_tile_of_query_tokens_and_of_keys(everything: list[Scenario], feature: str) -> None:
    found = [s for s in everything if s.name.startswith("features-") and FEATURES[feature](s)]
    assert any(max(s.batch.query_lens) > TILE and build_layout(s).max_seqlen_k > 2 * TILE for s in found)


SEVERAL: dict[str, Callable[[Scenario], bool]] = {
    "blocks of one slot": lambda s: (
        s.cache.block_size == 1 and min(s.batch.cached_lens) < 128 < max(s.batch.cached_lens)
    ),
    "blocks of no power of two": lambda s: s.cache.block_size in (3, 48, 192),
    "an interleaved pool": lambda s: s.cache.layout.form == "interleaved-kv",
    "strides of its own": lambda s: s.cache.layout.k_stride != s.cache.layout.v_stride,
    "a softmax scale of its own": lambda s: s.attention.softmax_scale not in (1.0, s.attention.head_dim**-0.5),
    "a head dim that is no power of two": lambda s: s.attention.head_dim in (80, 96),
    "a wide head dim": lambda s: s.attention.head_dim == 256,
    "a group that is no power of two": lambda s: s.attention.group_size == 7,
    "many heads": lambda s: s.attention.num_heads > 128,
    "more sequences than a warp": lambda s: s.batch.size > 32 and min(s.batch.query_lens) > 1,
    "large scores": lambda s: s.inputs.k.offset != 0,
    "a shared prefix": lambda s: s.cache.placement == "shared-prefix",
    "high block ids": lambda s: s.cache.placement == "high-ids",
    "ALiBi without causality": lambda s: s.attention.alibi_slopes is not None and not s.attention.causal,
    "no key without causality": lambda s: not s.attention.causal and not s.batch.append and 0 in s.batch.cached_lens,
    "a forced number of splits": lambda s: s.attention.num_splits > 1 and build_layout(s).max_seqlen_k > 1024,
    "a window on a long context": lambda s: s.attention.window_size[0] > 512 and build_layout(s).max_seqlen_k > 1024,
    "an empty query beside it": lambda s: 0 in s.batch.query_lens,
}


@pytest.mark.parametrize("what", SEVERAL)
def test_what_decode_meets_several_query_tokens_meet_as_well(everything: list[Scenario], what: str) -> None:
    """Kernels have a path of their own for prompts and chunks."""
    small = [s for s in everything if s.name.startswith(("edge-", "features-")) and s.batch.size]
    assert any(SEVERAL[what](s) and max(s.batch.query_lens) > 2 for s in small)


@pytest.mark.parametrize("feature", ["window", "softcap", "sinks", "ALiBi"])
def test_what_changes_weights_meets_a_shared_prefix(everything: list[Scenario], feature: str) -> None:
    """Kernels that find one attend to it once for all sequences, and join two parts."""
    assert any(s.cache.placement == "shared-prefix" and FEATURES[feature](s) for s in everything)


def test_eight_bits_meet_the_head_dim_and_the_output_that_models_have(everything: list[Scenario]) -> None:
    found = [s.attention for s in everything if s.attention.kv_dtype.startswith("float8")]
    assert any(a.head_dim == 128 and a.dtype == "float16" for a in found)


def test_whole_tiles_of_query_tokens_see_nothing_before_some_that_do(everything: list[Scenario]) -> None:
    (scenario,) = of_document(everything, "edge-blind-tiles")
    layout = build_layout(scenario)
    seen = layout.visible_to > layout.visible_from
    first, second, _ = layout.query_lens
    assert not seen[:TILE].any()
    assert seen[first - 1]
    assert not seen[first : first + second].any()


def test_a_window_hides_the_first_tile_that_is_read_for_some_of_its_rows(everything: list[Scenario]) -> None:
    """Row 64 of the first sequence is key 134 and begins at key 115, in the tile from 64 on; row 127 begins at 178."""
    scenario, _ = of_document(everything, "features-tiles-window")
    layout = build_layout(scenario)
    assert layout.visible_from[TILE] // TILE < layout.visible_from[2 * TILE - 1] // TILE


def test_a_prompt_is_longer_than_two_tiles_of_any_size(everything: list[Scenario]) -> None:
    (scenario,) = of_document(everything, "features-tiles-many")
    assert max(scenario.batch.query_lens) > 2 * 256
