"""The pytest plugin: a kernel repository tests its kernel in its own test suite, and failures read like the terminal's.

    from pagedbench.pytest_plugin import pagedbench_scenarios
    from my_kernels import my_decode

    @pagedbench_scenarios("docs", "edge")
    def test_my_decode(pagedbench_check):
        pagedbench_check(my_decode)

or, with `pytest --pagedbench-backend my_kernels.py:my_decode`, just `pagedbench_check()`. Cells run in pytest's own
process, so that a debugger works; with `--pagedbench-isolate` in a worker process, so that a kernel that crashes or
hangs fails its own test and no other. Nothing heavy is imported before a test asks for it.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pagedbench.errors import PagedbenchError

if TYPE_CHECKING:
    from pagedbench.backends.base import Backend
    from pagedbench.results.record import CellRecord
    from pagedbench.runner.pool import Workers
    from pagedbench.scenario.model import Scenario

MARK = "pagedbench_scenarios"
_PASSED = pytest.StashKey[bool]()


class PagedbenchWarning(UserWarning):
    """A warning beside a pass, such as BLIND: the scenario could not have shown the fault it looks made for."""


def pagedbench_scenarios(*targets: str) -> pytest.MarkDecorator:
    """Run a test once for each scenario of the targets: shipped names, patterns and folders, or files of your own."""
    return getattr(pytest.mark, MARK)(*targets)  # type: ignore[no-any-return]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin."""
    group = parser.getgroup("pagedbench", "paged-attention kernels")
    group.addoption(
        "--pagedbench-backend",
        action="append",
        default=[],
        metavar="TARGET",
        help="what pagedbench_check tests if the test names nothing: torch, kernel.py:my_decode, ... (repeatable)",
    )
    group.addoption("--pagedbench-device", default="auto", metavar="DEVICE", help="auto, cpu or cuda")
    group.addoption("--pagedbench-suite", default="quick", choices=("run", "quick", "full"), help="how much is checked")
    group.addoption(
        "--pagedbench-isolate",
        action="store_true",
        help="judge in a worker process: a kernel that crashes or hangs fails its own test and no other",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", f"{MARK}(*targets): run the test once for each scenario of the targets")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a scenario of the marker, and a backend of the command line where it names several: whether a test
    passes a kernel of its own instead is not known yet, and one name in its id would be wrong then."""
    marker = metafunc.definition.get_closest_marker(MARK)
    if marker is not None and "pagedbench_scenario" in metafunc.fixturenames:
        scenarios = _load(marker.args)
        metafunc.parametrize("pagedbench_scenario", scenarios, ids=[s.name for s in scenarios], indirect=True)
    backends = metafunc.config.getoption("--pagedbench-backend")
    if len(backends) > 1 and "pagedbench_backend" in metafunc.fixturenames:
        metafunc.parametrize("pagedbench_backend", backends, ids=backends, indirect=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that is marked and takes no fixture would pass, and judge nothing."""
    fixtures = getattr(item, "fixturenames", ())
    if item.get_closest_marker(MARK) is not None and "pagedbench_scenario" not in fixtures:
        pytest.fail(
            "the test is marked with scenarios and judges no kernel: take pagedbench_check as an argument and call it",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, Any]:
    """Keep how the test itself ended, for the teardown of `pagedbench_check`."""
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


def _load(targets: Sequence[str]) -> list[Scenario]:
    from pagedbench.scenario.loader import load_scenarios

    try:
        return load_scenarios(targets)
    except PagedbenchError as error:
        told = _told(error)
    pytest.fail(told, pytrace=False)  # out here, or it would be told with what it came from


def _told(error: PagedbenchError) -> str:
    return f"{error.message}\nhint: {error.hint}" if error.hint else error.message


@pytest.fixture
def pagedbench_scenario(request: pytest.FixtureRequest) -> Scenario | None:
    """The scenario that `@pagedbench_scenarios` runs the test with; None without it."""
    return getattr(request, "param", None)


@pytest.fixture
def pagedbench_backend(request: pytest.FixtureRequest) -> str | None:
    """What `--pagedbench-backend` names, of several the one of this test; None without it."""
    only = next(iter(request.config.getoption("--pagedbench-backend")), None)
    return getattr(request, "param", only)


@pytest.fixture(scope="session")
def pagedbench_workers(request: pytest.FixtureRequest) -> Iterator[Workers | None]:
    """The worker processes of `--pagedbench-isolate`, shared by all tests; None without it."""
    if not request.config.getoption("--pagedbench-isolate"):
        yield None
        return
    from pagedbench.runner.pool import WorkerOptions, Workers

    with Workers(WorkerOptions(request.config.getoption("--pagedbench-device"))) as workers:
        yield workers


@pytest.fixture
def pagedbench_check(
    request: pytest.FixtureRequest,
    pagedbench_scenario: Scenario | None,
    pagedbench_backend: str | None,
    pagedbench_workers: Workers | None,
) -> Iterator[Callable[..., list[CellRecord]]]:
    """A function that judges a kernel: `pagedbench_check(kernel, scenario)`.

    `kernel` is a function, a `Backend`, or a name (`torch`, `kernel.py:my_decode`, each with `:path` if wanted); left
    out, it is what the command line names. `scenario` is a name, a file or a `Scenario`; left out, it is the marker's.
    It fails the test like the terminal does, skips it if every cell was skipped, and returns the records of the cells.
    A test that passes without a call is an error: nothing was judged.
    """
    called = False

    def check(kernel: Any = None, scenario: Scenario | str | None = None) -> list[CellRecord]:
        __tracebackhide__ = True
        nonlocal called
        called = True
        kernel = pagedbench_backend if kernel is None else kernel
        scenario = pagedbench_scenario if scenario is None else scenario
        if kernel is None:
            pytest.fail("which kernel? pass it to pagedbench_check, or run with --pagedbench-backend", pytrace=False)
        if scenario is None:
            pytest.fail("which scenario? pass it to pagedbench_check, or use @pagedbench_scenarios", pytrace=False)
        try:
            scenarios = _load([scenario]) if isinstance(scenario, str) else [scenario]
            suite = request.config.getoption("--pagedbench-suite")
            if pagedbench_workers is None:
                device = request.config.getoption("--pagedbench-device")
                records = _judge_here(kernel, scenarios, suite, device)
            else:
                records = _judge_apart(kernel, scenarios, suite, pagedbench_workers)
        except PagedbenchError as error:
            told = _told(error)
        else:
            _conclude(records)
            return records
        pytest.fail(told, pytrace=False)

    yield check
    if not called and request.node.stash.get(_PASSED, False):
        pytest.fail(
            "the test passed, and judged no kernel: it takes pagedbench_check and never calls it; write "
            "pagedbench_check(my_kernel), or pagedbench_check() for what --pagedbench-backend names",
            pytrace=False,
        )


def _judge_apart(kernel: Any, scenarios: Sequence[Scenario], suite: str, workers: Workers) -> list[CellRecord]:
    """The same as `_judge_here` in a worker process, which finds the kernel by its name."""
    from pagedbench.runner.cells import JudgeOptions, plan
    from pagedbench.runner.outcome import apply_expectation

    name = kernel if isinstance(kernel, str) else _name_of(kernel)
    if "<" in name:
        pytest.fail(f"{name} cannot be judged in a worker process: move it to the top of its file", pytrace=False)
    options = JudgeOptions("run" if suite == "run" else "check", suite, workers.device)
    records = []
    for cell in plan(scenarios, workers.resolve([name], ["all"])):
        record = workers.judge(cell.job(options), cell.target.compile_seconds, lambda stage: None)
        cell.describe(record, options, workers.environment, "")
        apply_expectation(record, cell.scenario.expect)
        records.append(record)
    return records


def _judge_here(kernel: Any, scenarios: Sequence[Scenario], suite: str, wanted_device: str) -> list[CellRecord]:
    """A record for each path of the kernel and each scenario."""
    from pagedbench.runner.cell import judge
    from pagedbench.runner.environment import choose_device
    from pagedbench.runner.outcome import apply_expectation
    from pagedbench.runner.paths import shorten_paths
    from pagedbench.runner.protocol import Job
    from pagedbench.runner.state import changes, process_state, restore

    device = choose_device(wanted_device)
    backend, paths = _resolve(kernel)
    records = []
    with _address_space_kept():
        for one in scenarios:
            for path in paths:
                job = Job(one, backend.name, path, device, suite)
                before = process_state()
                try:
                    record = judge(job, _tell_nobody, backend).record
                    record.warnings += changes(before)
                finally:
                    restore(before)  # the process is the user's, and goes on
                record.where = shorten_paths(one.origin.where("name"))
                record.suite = suite
                record.command = "run" if suite == "run" else "check"
                apply_expectation(record, one.expect)
                records.append(record)
    return records


def _resolve(kernel: Any) -> tuple[Backend, list[str]]:
    """The backend that is meant, and the paths of it that are run."""
    from pagedbench.backends.files import as_backend
    from pagedbench.backends.registry import parse_target

    if not isinstance(kernel, str):
        name = _name_of(kernel)
        backend = as_backend(kernel, name, name, place=name)
        return backend, [str(path) for path in backend.paths]
    target = parse_target(kernel)
    if target.backend is None:
        pytest.fail(f"{kernel!r} names a path, no kernel", pytrace=False)
    return target.backend, [str(target.path)] if target.path else [str(path) for path in target.backend.paths]


def _name_of(kernel: Any) -> str:
    """As the command line would name it: `kernel.py:my_decode`; the qualified name of what it cannot name."""
    name = getattr(kernel, "__qualname__", type(kernel).__qualname__)
    try:
        file = inspect.getsourcefile(kernel)
    except TypeError:  # an instance has no file of its own
        file = None
    return name if file is None or "<" in name else f"{os.path.relpath(file)}:{name}"


def _tell_nobody(event: str, **values: object) -> None:
    """There is no parent process that follows the cell."""


@contextmanager
def _address_space_kept() -> Iterator[None]:
    """Judging bounds the address space of its process; that must not outlast it in a process that is not its own."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _conclude(records: Sequence[CellRecord]) -> None:
    """Fail, skip or xfail the test by the records; warn of what stands beside a pass."""
    from pagedbench.report.story import Standing, standing
    from pagedbench.report.table import reason_of_skip

    __tracebackhide__ = True
    for record in records:
        for warning in record.all_warnings:
            warnings.warn(f"{record.scenario} {record.target}: {warning}", PagedbenchWarning, stacklevel=4)
    standings = [standing(record.verdict) for record in records]
    failed = [record for record, found in zip(records, standings, strict=True) if found.failed]
    if failed:
        pytest.fail("\n\n".join(_failure(record) for record in failed), pytrace=False)
    if Standing.PASSED not in standings:
        reasons = "; ".join(dict.fromkeys(reason_of_skip(record) for record in records)) or "there was no cell"
        if Standing.EXPECTED in standings:
            pytest.xfail(reasons)
        pytest.skip(reasons)


def _failure(record: CellRecord) -> str:
    """A failed cell as under the terminal's table, and how to see it again."""
    from pagedbench.report.story import reproduce
    from pagedbench.report.table import failure_lines

    lines = [f"{record.verdict} {record.scenario} {record.target}", *(f"  {line}" for line in failure_lines(record))]
    if record.where:
        lines.append(f"  written in {record.where}")
    if "<" not in record.backend:  # a function within another has no name on the command line
        lines.append(f"  again: {reproduce(record)}")
    return "\n".join([*lines, "", record.error] if record.error else lines)
