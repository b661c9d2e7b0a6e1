"""The laws as tests: `pytest --pyargs kvref_conformance --kv-target=...`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from kvref_conformance.documents.profile import ProfileError
from kvref_conformance.documents.results import EXIT_CODES, Status
from kvref_conformance.laws import ANSWERS
from kvref_conformance.processes.launch import TargetFailed
from kvref_conformance.processes.releases import HostError
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import render
from kvref_conformance.running.checker import DEPTH, DEPTHS, Options
from kvref_conformance.running.loading import Loaded, NoSuchLaw, choose_baseline, loaded, prepare, select_laws
from kvref_conformance.targets import UnknownTarget


def option(config: pytest.Config, name: str) -> Any:
    """The value of an option that `plugin.py` adds."""
    return config.getoption(name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each selected law."""
    if "law" not in metafunc.fixturenames:
        return
    try:
        laws = select_laws(option(metafunc.config, "--kv-laws"))
    except NoSuchLaw as error:
        raise pytest.UsageError(str(error)) from error
    # Each test also judges `target.answers`. It needs its own test only if no other law is chosen.
    metafunc.parametrize("law", [law for law in laws if law != ANSWERS.id] or laws)


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    """The target, loaded once for all laws."""
    if option(request.config, "--kv-depth") not in (None, *DEPTHS):
        raise pytest.UsageError(f"--kv-depth must be one of {', '.join(DEPTHS)}")
    laws, device = select_laws(option(request.config, "--kv-laws")), option(request.config, "--kv-device")
    try:
        worker, profile = prepare(
            option(request.config, "--kv-target"),
            option(request.config, "--kv-profile"),
            python=option(request.config, "--kv-python"),
            paths=option(request.config, "--kv-path"),
            stubs=option(request.config, "--kv-stub"),
        )
        with (
            progress(Console(file=io.StringIO())) as watcher,
            loaded(worker, laws, watcher, profile, device=device) as one,
        ):
            yield one
    except (UnknownTarget, TargetFailed, ProfileError, HostError) as error:
        pytest.exit(f"kvref: {error}", returncode=pytest.ExitCode.USAGE_ERROR)


def test_there_is_something_to_judge(target: Loaded, request: pytest.FixtureRequest) -> None:
    """Fail if no selected law applies to the target.

    Otherwise pytest would skip all tests, and the run would pass.
    """
    laws = select_laws(option(request.config, "--kv-laws"))
    with progress(Console(file=io.StringIO())) as watcher:
        runner = target.checker(Options(laws=laws), watcher)
    if not runner.has_work():
        reasons = dict.fromkeys(row.message for row in runner.left_out())
        pytest.fail(f"nothing was judged: {'; '.join(reasons)}", pytrace=False)


def test_law(law: str, target: Loaded, request: pytest.FixtureRequest) -> None:
    """The law holds for every subject, or breaks only in known ways (`xfail`)."""
    options = Options(
        laws=(law, ANSWERS.id),
        depth=option(request.config, "--kv-depth") or target.profile.depth or DEPTH,
        seed=option(request.config, "--kv-seed"),
        strict=option(request.config, "--kv-strict"),
    )
    baseline = choose_baseline(option(request.config, "--kv-baseline"), target.description)
    with progress(Console(file=io.StringIO())) as watcher:
        result = target.check(options, baseline, watcher)
    rows = [row for row in result.rows if row.law == law]
    if all(row.status in (Status.NOT_APPLICABLE, Status.DECLARED_GAP) for row in rows):
        pytest.skip("; ".join(dict.fromkeys(f"{row.status}: {row.message}" for row in rows)))
    if EXIT_CODES[result.verdict] != 0:
        text = io.StringIO()
        render(result, Console(file=text, width=100))
        pytest.fail(text.getvalue(), pytrace=False)
    if known := [row for row in rows if row.status is Status.KNOWN]:
        pytest.xfail("; ".join(f"{row.title}: {row.message}" for row in known))
