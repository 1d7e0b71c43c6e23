"""From targets (shipped names, files, folders) to validated scenarios, or to every problem of every file at once.

Nothing is allocated here but index arrays: a scenario that leaves this module can be laid out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationError

from pagedbench.errors import Problem, ScenarioError, UsageError
from pagedbench.layout.build import build_layout
from pagedbench.layout.overrides import refuse_bad_override
from pagedbench.layout.refusals import refuse_long_capture
from pagedbench.layout.steps import at_last_step
from pagedbench.scenario.catalog import SUFFIXES, files_with_name, scenario_files, scenario_root, shipped
from pagedbench.scenario.document import ScenarioDocument
from pagedbench.scenario.matrix import Sweep, Variant, variants
from pagedbench.scenario.model import Origin, Scenario
from pagedbench.scenario.refusals import Refusals, describe, nearest
from pagedbench.scenario.resolve import resolve
from pagedbench.scenario.source import MAX_PROBLEMS, SourceDocument, parse, read_text


@dataclass(frozen=True)
class _Selection:
    """A file, and which of its scenarios are wanted: None for all, a document's name, a variant's, or a pattern."""

    file: Path
    wanted: str | None = None

    def has_document(self, name: object) -> bool:
        wanted = None if self.wanted is None else self.wanted.partition("[")[0]
        return wanted is None or (isinstance(name, str) and fnmatchcase(name, wanted))

    def has_scenario(self, name: str) -> bool:
        return self.wanted is None or "[" not in self.wanted or name == self.wanted


def load_scenarios(targets: Sequence[str], sweep: Sweep | None = None) -> list[Scenario]:
    """All scenarios of the targets, documents and variants in the order written, each file once.

    A target is the name of a shipped scenario (`docs-decode`, one variant `edge-padding[cache.padding=0]`, a pattern
    `edge-*`), a shipped folder (`docs`), a file, or a folder of files. A bare word is a shipped name first; `./docs` is
    always a folder of one's own. `sweep` adds to every document's matrix. Raises UsageError for targets that do not
    exist and ScenarioError with all problems of all files.
    """
    selections = dict.fromkeys(selection for target in targets for selection in _find(target))
    loaded = [_load_selection(selection, sweep or {}) for selection in selections]
    scenarios = _unique(scenario for made, _ in loaded for scenario in made)
    problems = [problem for _, found in loaded for problem in found] + _repeated_names(scenarios)
    if problems:
        raise ScenarioError(_each_once(problems))
    return scenarios


def loads(text: str, file: str = "<string>", sweep: Sweep | None = None) -> list[Scenario]:
    """The scenarios of a YAML text; raises ScenarioError with all its problems."""
    scenarios = _load_text(text, file, _Selection(Path(file)), sweep or {})
    problems = _repeated_names(scenarios)
    if problems:
        raise ScenarioError(_each_once(problems))
    return scenarios


def _load_selection(selection: _Selection, sweep: Sweep) -> tuple[list[Scenario], Sequence[Problem]]:
    """The scenarios of a file, or its problems, so that other files are looked at as well."""
    try:
        return _load_text(read_text(selection.file), _display(selection.file), selection, sweep), ()
    except ScenarioError as error:
        return [], error.problems


def _load_text(text: str, file: str, selection: _Selection, sweep: Sweep) -> list[Scenario]:
    scenarios: list[Scenario] = []
    problems: list[Problem] = []
    for source in parse(text, file):
        name = source.data.get("name") if isinstance(source.data, dict) else None
        if source.problems or selection.has_document(name):
            made, found = _load_document(source, file, sweep)
            scenarios += made
            problems += found
    if problems:
        raise ScenarioError(_each_once(problems))
    linked, unlinked = _link_equals(scenarios)
    if unlinked:
        raise ScenarioError(_each_once(unlinked))
    wanted = [scenario for scenario in linked if selection.has_scenario(scenario.name)]
    if scenarios and not wanted:
        hint = nearest(selection.wanted or "", [scenario.name for scenario in linked])
        raise UsageError(f"there is no scenario '{selection.wanted}'", hint or "`pagedbench scenarios` lists them")
    return wanted


def _load_document(source: SourceDocument, file: str, sweep: Sweep) -> tuple[list[Scenario], list[Problem]]:
    refusals = Refusals(Origin(file, source.positions), source.keys)
    if source.problems:
        return [], list(source.problems)
    if not isinstance(source.data, dict):
        refusals.add("document", describe(source.data) if source.data is not None else "nothing", "a mapping of fields")
        return [], refusals.problems
    scenarios: list[Scenario] = []
    problems: list[Problem] = []
    for variant in variants(source, source.data, file, sweep, refusals):
        scenario, found = _load_variant(variant)
        problems += found
        if scenario is not None:
            scenarios.append(scenario)
        if len(problems) > MAX_PROBLEMS:
            break
    return scenarios, refusals.problems + problems


def _load_variant(variant: Variant) -> tuple[Scenario | None, list[Problem]]:
    refusals = Refusals(variant.origin, variant.keys)
    try:
        document = ScenarioDocument.model_validate(variant.data)
    except ValidationError as error:
        refusals.add_validation(error, variant.data)
        return None, refusals.problems
    scenario = resolve(document, variant, refusals)
    if scenario is not None:
        try:
            layout = build_layout(scenario)
            refuse_long_capture(scenario, layout)
            refuse_bad_override(scenario, layout)
            if scenario.steps > 1:
                build_layout(at_last_step(scenario))
        except ScenarioError as error:
            return None, list(error.problems)
    return scenario, refusals.problems


def _link_equals(scenarios: list[Scenario]) -> tuple[list[Scenario], list[Problem]]:
    """Full names for what `equals` names, in the same file; the scenario that is named is not compared with itself."""
    names = {scenario.name for scenario in scenarios}
    linked: list[Scenario] = []
    problems: list[Problem] = []
    for scenario in scenarios:
        if scenario.equals is None:
            linked.append(scenario)
            continue
        given = scenario.equals.variant
        own = f"{scenario.name.partition('[')[0]}[{given.strip('[]')}]"
        full = given if given in names else own
        if full not in names:
            hint = nearest(own, names)
            problems.append(scenario.problem("equals.variant", describe(given), "a variant of this file", hint))
        equals = None if full == scenario.name else replace(scenario.equals, variant=full)
        linked.append(replace(scenario, equals=equals))
    return linked, problems


def _unique(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Each scenario once, however many targets found it."""
    return list({(s.origin.file, s.origin.positions[""], s.name): s for s in scenarios}.values())


def _repeated_names(scenarios: Iterable[Scenario]) -> list[Problem]:
    first: dict[str, Scenario] = {}
    problems: list[Problem] = []
    for scenario in scenarios:
        other = first.setdefault(scenario.name, scenario)
        if other is not scenario:
            found = f"'{scenario.name}' again (first in {other.origin.where('name')})"
            problems.append(scenario.problem("name", found, "a name of its own"))
    return problems


def _each_once(problems: Iterable[Problem]) -> list[Problem]:
    """File by file in the order of their places, each once: variants repeat what is wrong with their document."""
    unique = {(p.where, p.field, p.found, p.needed): p for p in problems}.values()
    files = {file: rank for rank, file in enumerate(dict.fromkeys(p.where.rsplit(":", 2)[0] for p in unique))}

    def place(problem: Problem) -> tuple[int, int, int]:
        file, line, column = problem.where.rsplit(":", 2)
        return files[file], int(line), int(column)

    return sorted(unique, key=place)


def _find(target: str) -> list[_Selection]:
    _refuse_no_name(target)
    path = Path(target)
    looks_like_path = path.suffix in SUFFIXES or os.sep in target.partition("[")[0] or target in ("", ".", "..")
    if not looks_like_path:
        found = _find_shipped(target)
        if found:
            return found
    if path.is_dir():
        files = scenario_files(path)
        if not files:
            raise UsageError(f"the folder '{target}' has no scenario files", f"they end in {' or '.join(SUFFIXES)}")
        return [_Selection(file) for file in files]
    if path.exists():
        return [_Selection(path)]
    if looks_like_path:
        raise UsageError(f"there is no file or folder '{target}'")
    names = [entry.name for entry in shipped()]
    folders = [folder.name for folder in scenario_root().iterdir() if folder.is_dir()]
    hint = nearest(target, names + folders) or "`pagedbench scenarios` lists them"
    raise UsageError(f"there is no scenario, file or folder '{target}'", hint)


def _refuse_no_name(target: str) -> None:
    """Raises UsageError for what can name no scenario: nothing, as of an empty variable of a shell, and a kernel."""
    if not target.strip():
        raise UsageError("the name of a scenario is empty", "`pagedbench scenarios` lists them; . is this folder")
    file, python, _ = target.partition(".py:")
    kernel = f"{file}.py" if python else target
    if kernel.endswith(".py") and not Path(kernel).is_dir():
        hint = f"a kernel is named by --backend: -b {target}, and a scenario beside it: docs-decode, say"
        raise UsageError(f"'{target}' is a Python file, no scenario", hint)


def _find_shipped(target: str) -> list[_Selection]:
    folder = scenario_root() / target
    if folder.is_dir():
        return [_Selection(file) for file in scenario_files(folder)]
    return [_Selection(file, target) for file in files_with_name(target)]


def _display(file: Path) -> str:
    """The path as a person would write it: relative where the file is below the working directory."""
    try:
        return str(file.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(file)
