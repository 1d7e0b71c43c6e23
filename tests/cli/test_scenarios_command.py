"""`pagedbench scenarios` and `pagedbench schema`, as a person and a script see them."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from pagedbench.cli.app import app
from pagedbench.errors import UsageError
from pagedbench.scenario.loader import loads


def output_of(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_table_fits_a_hundred_columns_and_names_every_folder() -> None:
    lines = output_of("scenarios").splitlines()
    assert max(len(line) for line in lines) <= 100
    for name in ("docs-decode", "edge-padding", "features-window", "models-llama-decode", "long-decode-131072"):
        assert any(name in line for line in lines)


def test_a_folder_or_a_pattern_narrows_the_list() -> None:
    assert "edge-padding" not in output_of("scenarios", "docs")
    assert "3 scenarios, 3 with their variants" in output_of("scenarios", "docs")
    assert "edge-padding-rows" in output_of("scenarios", "edge-padding*")


def test_a_name_prints_its_document_ready_to_copy() -> None:
    text = output_of("scenarios", "docs-decode")
    (scenario,) = loads(text)
    assert scenario.name == "docs-decode"
    assert "# keys in the cache before this step" in text
    assert [s.name for s in loads(output_of("scenarios", "docs-varlen", "docs-decode"))] == [
        "docs-decode",
        "docs-varlen",
    ]


def test_a_variant_by_the_name_that_tables_print_prints_the_document_that_it_is_of() -> None:
    assert output_of("scenarios", "edge-padding[cache.padding=0]") == output_of("scenarios", "edge-padding")


def test_an_unknown_variant_has_its_nearest() -> None:
    done = CliRunner().invoke(app, ["scenarios", "features-window[attention.window=18]"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.hint is not None
    assert done.exception.hint.startswith("did you mean features-window[attention.window=1")
    misspelt = CliRunner().invoke(app, ["scenarios", "edge-paddin[cache.padding=0]"])
    assert isinstance(misspelt.exception, UsageError)
    assert misspelt.exception.hint == "did you mean edge-padding?"


def test_json_has_a_row_a_scenario() -> None:
    rows = json.loads(output_of("scenarios", "edge-padding", "--json"))
    assert rows[0]["name"] == "edge-padding"
    assert rows[0]["folder"] == "edge"
    assert rows[0]["variants"] == 4
    assert rows[0]["file"].endswith("padding.yaml")


def test_an_unknown_name_has_its_nearest() -> None:
    done = CliRunner().invoke(app, ["scenarios", "docs-decod"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.hint == "did you mean docs-decode?"


def test_the_schema_is_json() -> None:
    assert json.loads(output_of("schema"))["title"] == "pagedbench scenario"
