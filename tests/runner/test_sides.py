"""Which words are sides and which are scenarios, and the comparisons they make."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pagedbench.errors import UsageError
from pagedbench.runner.protocol import ResolvedTarget
from pagedbench.runner.sides import groups_of, sort_words

BACKENDS = {"torch": ("varlen", "decode", "paged-varlen"), "flash-attn-3": ("varlen", "decode"), "one": ("decode",)}


def resolve(names: Sequence[str], paths: Sequence[str]) -> list[ResolvedTarget]:
    """As the worker does on a GPU machine: torch and flash-attn-3 are the defaults."""
    found = []
    for text in names or ("torch", "flash-attn-3"):
        name, _, path = text.rpartition(":") if ":" in text else (text, "", "")
        if name.endswith(".py"):
            own: tuple[str, ...] = ("decode",)
        elif name not in BACKENDS:
            raise UsageError(f"there is no backend {text!r}", hint="did you mean torch?")
        else:
            own = (path,) if path else BACKENDS[name]
        found.append(ResolvedTarget(name, own, available=True))
    return found


def is_scenario(word: str) -> bool:
    return word in ("docs-decode", "edge", "one", "docs-decode[cache.padding=0]")


def sort(*words: str):
    found = sort_words(words, resolve, is_scenario)
    return found.sides, found.scenarios


def targets(groups) -> list[list[str]]:
    return [[f"{choice.target.name}:{choice.path}" for choice in group] for group in groups]


class TestWords:
    def test_paths_backends_and_files_are_sides_the_rest_scenarios(self):
        assert sort("varlen", "decode", "docs-decode") == (("varlen", "decode"), ("docs-decode",))
        assert sort("flash-attn-3:decode", "torch", "docs-decode", "edge") == (
            ("flash-attn-3:decode", "torch"),
            ("docs-decode", "edge"),
        )
        assert sort("my_kernel.py:fast", "torch", "mine.yaml", "./folder")[1] == ("mine.yaml", "./folder")

    def test_they_may_stand_in_any_order(self):
        assert sort("docs-decode", "varlen", "decode") == (("varlen", "decode"), ("docs-decode",))

    def test_a_side_may_be_compared_with_itself(self):
        assert sort("torch:decode", "torch:decode", "edge")[0] == ("torch:decode", "torch:decode")

    def test_a_backend_wins_over_a_scenario_of_the_same_name(self):
        assert sort("one", "torch", "edge") == (("one", "torch"), ("edge",))

    def test_variants_of_scenarios_are_scenarios(self):
        assert sort("varlen", "decode", "docs-decode[cache.padding=0]")[1] == ("docs-decode[cache.padding=0]",)

    def test_a_path_that_was_nearly_written_is_suggested(self):
        with pytest.raises(UsageError) as refused:
            sort("varlen", "decod", "docs-decode")
        assert refused.value.hint == "did you mean decode?"

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("decode", "docs-decode"), "two sides are needed, only 'decode' is one"),
            (("docs-decode",), "two sides are needed, none is given"),
            (("varlen", "decode"), "no scenario is given to compare on"),
            (("varlen", "decode", "dosc-decode"), "'dosc-decode' is neither a side nor a scenario"),
            (("tortch:decode", "decode", "edge"), "there is no backend 'tortch:decode'"),
        ],
    )
    def test_what_is_wrong_is_named(self, words, message):
        with pytest.raises(UsageError, match=message):
            sort(*words)


class TestGroups:
    def test_bare_paths_are_compared_on_the_best_backend_that_has_both(self):
        assert targets(groups_of(("varlen", "decode"), resolve)) == [["flash-attn-3:varlen", "flash-attn-3:decode"]]

    def test_or_on_a_lesser_one_that_has_them(self):
        assert targets(groups_of(("decode", "paged-varlen"), resolve)) == [["torch:decode", "torch:paged-varlen"]]

    def test_or_on_the_backend_that_is_named(self):
        assert targets(groups_of(("varlen", "decode"), resolve, backend="torch")) == [["torch:varlen", "torch:decode"]]

    def test_a_named_backend_without_the_path_is_refused(self):
        with pytest.raises(UsageError, match="one has no varlen and decode"):
            groups_of(("varlen", "decode"), resolve, backend="one")

    def test_backends_without_a_path_meet_on_each_common_one(self):
        assert targets(groups_of(("flash-attn-3", "torch"), resolve)) == [
            ["flash-attn-3:varlen", "torch:varlen"],
            ["flash-attn-3:decode", "torch:decode"],
        ]
        assert targets(groups_of(("one", "torch"), resolve)) == [["one:decode", "torch:decode"]]

    def test_targets_with_a_path_join_every_comparison(self):
        assert targets(groups_of(("flash-attn-3:decode", "torch:varlen"), resolve)) == [
            ["flash-attn-3:decode", "torch:varlen"]
        ]
