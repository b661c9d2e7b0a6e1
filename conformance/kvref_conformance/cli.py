"""The command line: `kvref check | fuzz | laws | doctor | replay | faults | hosts | matrix`."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

import kvref
from kvref_conformance import (
    baseline as baselines,
    fault_matrix,
    hosts as releases,
    matrix as matrices,
    schemas,
)
from kvref_conformance.check import DEVICES, NoSuchLaw, choose_baseline, loaded, prepare, select_laws
from kvref_conformance.findings import Store
from kvref_conformance.fuzz import Fuzz
from kvref_conformance.laws import LAWS
from kvref_conformance.profile import ProfileError
from kvref_conformance.reached import CannotMeasure, needs_library
from kvref_conformance.report import (
    ForeignDirectory,
    by_reason,
    claim,
    progress,
    render,
    render_laws,
    write_report,
)
from kvref_conformance.report.faults import page as fault_page, render_faults
from kvref_conformance.report.files import report_document
from kvref_conformance.report.fuzzing import render_fuzz, watching
from kvref_conformance.report.lawbook import laws_page
from kvref_conformance.report.text import slug, visible, visible_lines
from kvref_conformance.results import EXIT_CODES, EXIT_USAGE, Status, Verdict
from kvref_conformance.runner import DEPTHS, NoSuchSubject, Options
from kvref_conformance.session import NotJudged
from kvref_conformance.targets import UnknownTarget
from kvref_conformance.worker import TargetFailed

EXIT_INTERRUPTED = 130

_POLITE_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

_REFUSED = (
    NoSuchLaw,
    NoSuchSubject,
    fault_matrix.NoSuchArea,
    UnknownTarget,
    TargetFailed,
    ProfileError,
    NotJudged,
    CannotMeasure,
    ForeignDirectory,
    releases.HostError,
    baselines.BaselineError,
    schemas.InvalidDocument,
)


@contextmanager
def _ends_in_order() -> Iterator[None]:
    """Make polite requests to end an exception, so that nothing is left behind."""

    def leave(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    polite = [number for number in _POLITE_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in polite:
            signal.signal(number, leave)
        yield
    finally:
        for number in polite:
            signal.signal(number, signal.SIG_DFL)


class _Group(click.Group):
    """Ends every refusal with one paragraph and exit code 2; an interrupt leaves nothing running."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _ends_in_order():
                return super().invoke(ctx)
        except _REFUSED as error:
            click.echo(f"kvref: {visible_lines(str(error))}", err=True)
            ctx.exit(EXIT_USAGE)
        except KeyboardInterrupt:
            click.echo("kvref: interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except EOFError:  # click would take it for an interrupt
            click.echo("kvref: a process of the target ended where none was expected to", err=True)
            ctx.exit(EXIT_USAGE)
        except OSError as error:
            if error.errno == errno.EPIPE:  # nobody reads on: click ends quietly
                raise
            click.echo(f"kvref: {visible(str(error))}", err=True)
            ctx.exit(EXIT_USAGE)


def _seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not 0 < value <= 86_400 or math.isnan(value):
        raise click.BadParameter("give seconds, more than 0 and at most a day")
    return value


def _writable(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(value.parent)!r}")
    return value


def _duration(context: click.Context, parameter: click.Parameter, value: str) -> float:
    told = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value)
    if told is None or not float(told[1]):
        raise click.BadParameter("give a time such as 30s, 10m or 2h")
    return float(told[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[told[2]]


_Command = Callable[..., None]


def _with(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_target_options = _with(
    click.argument("target", required=False),
    click.option(
        "--profile",
        metavar="FILE|none",
        help="What the vendor declares; by default kvref.toml, or [tool.kvref] in pyproject.toml.",
    ),
    click.option("--python", help="Interpreter that loads the target; by default this one."),
    click.option(
        "--path",
        "paths",
        multiple=True,
        type=click.Path(exists=True, file_okay=False),
        help="Folder to import from first, such as another release of vLLM. Can be repeated.",
    ),
    click.option(
        "--stub",
        "stubs",
        multiple=True,
        metavar="NAME",
        help="Package for hardware that is not here; the plugin gets mocks. Can be repeated.",
    ),
    click.option(
        "--timeout",
        default=30.0,
        show_default=True,
        callback=_seconds,
        help="Seconds one operation may take; loading the target may take ten times that.",
    ),
)

_laws_option = click.option(
    "--laws", "patterns", multiple=True, metavar="GLOB", help="Only these laws, e.g. 'spec.*'."
)
_subjects_option = click.option(
    "--subjects", multiple=True, metavar="GLOB", help="Only these, e.g. 'SlidingWindow*'."
)
_depth_option = click.option(
    "--depth",
    type=click.Choice(list(DEPTHS)),
    default="quick",
    show_default=True,
    help=f"Examples for each law and subject: {', '.join(f'{d} {n}' for d, n in DEPTHS.items())}.",
)
_seed_option = click.option("--seed", default=0, show_default=True, help="Same seed, same examples.")
_device_option = click.option(
    "--device",
    type=click.Choice(DEVICES),
    default=DEVICES[0],
    show_default=True,
    help="Where tensors live.",
)
_jobs_option = click.option(
    "-n",
    "jobs",
    type=click.IntRange(min=1),
    default=min(os.cpu_count() or 1, 8),
    show_default=True,
    help="Units of work at a time.",
)
_baseline_option = click.option(
    "--baseline",
    metavar="FILE|none",
    help="Known deviations; by default those shipped for the target's version, if any.",
)
_output_option = click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_writable,
    help="File to write a page of Markdown to.",
)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(kvref.__version__, prog_name="kvref")
def cli() -> None:
    """Check that a KV-cache implementation keeps the laws an LLM engine relies on.

    A TARGET is 'reference' (kvref's own, the default if no profile names one), 'vllm' (the one installed),
    'vllm==VERSION' (a release that 'kvref hosts' prepared), 'vllm:PLUGIN' (with that platform plugin), or
    'package.module:factory' for any other (docs/targets.md).
    """


@cli.command()
@_target_options
@_laws_option
@_subjects_option
@_depth_option
@click.option("--budget", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop after this long.")
@_seed_option
@_device_option
@click.option(
    "--report", type=click.Path(file_okay=False, path_type=Path), help="Folder to write a report to."
)
@_jobs_option
@click.option("--json", "as_json", is_flag=True, help="Print report.json instead of tables.")
@click.option("--strict", is_flag=True, help="Broken robustness laws count, too.")
@_baseline_option
@click.option(
    "--save-baseline",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_writable,
    help="Write what was found broken as a baseline to review.",
)
@click.option("--coverage", is_flag=True, help="Also tell which lines of TARGET's own files no law reached.")
@click.option(
    "--coverage-source",
    "sources",
    multiple=True,
    metavar="MODULE",
    help="Take this module or package for TARGET's own; implies --coverage. Can be repeated.",
)
@click.pass_context
def check(
    context: click.Context,
    target: str | None,
    profile: str | None,
    python: str | None,
    paths: tuple[str, ...],
    stubs: tuple[str, ...],
    timeout: float,
    patterns: tuple[str, ...],
    subjects: tuple[str, ...],
    depth: str,
    budget: float | None,
    seed: int,
    device: str,
    report: Path | None,
    jobs: int,
    as_json: bool,
    strict: bool,
    baseline: str | None,
    save_baseline: Path | None,
    coverage: bool,
    sources: tuple[str, ...],
) -> None:
    """Run laws against TARGET.

    \b
    Exit codes:  0  conformant, with declared gaps or without
                 1  a law is broken, or one that the profile lists as known is not
                 2  bad usage, or the profile or the target cannot be used
                 3  incomplete: something was cut, died, or could not be confirmed
    """
    started = time.monotonic()
    measured = sources if coverage or sources else None
    if measured is not None:
        needs_library()
    laws = select_laws(patterns)
    if report is not None:
        claim(report)
    options = Options(laws, depth, seed, budget, jobs, strict, subjects)
    worker, declared = prepare(target, profile, python=python, paths=paths, stubs=stubs, timeout=timeout)
    worker = replace(worker, measured=measured)
    with (
        progress(Console(stderr=True)) as watcher,
        loaded(worker, laws, watcher, declared, device=device) as one,
    ):
        result = one.check(options, choose_baseline(baseline, one.description), watcher)
    result.elapsed_seconds = time.monotonic() - started
    if report is not None:
        write_report(result, report)
    if save_baseline is not None:
        baselines.save(result, save_baseline)
    if as_json:
        click.echo(json.dumps(report_document(result), indent=1))
    else:
        render(result, Console(), report)
    context.exit(EXIT_CODES[result.verdict])


@cli.command()
@_target_options
@click.option(
    "--for",
    "seconds",
    metavar="TIME",
    default="10m",
    show_default=True,
    callback=_duration,
    help="How long, e.g. 30s, 10m, 2h. What is being reduced then gets a minute more.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to keep findings and progress in; by default kvref-fuzz/TARGET-VERSION.",
)
@_laws_option
@_subjects_option
@_seed_option
@_device_option
@_jobs_option
@_baseline_option
@click.pass_context
def fuzz(
    context: click.Context,
    target: str | None,
    profile: str | None,
    python: str | None,
    paths: tuple[str, ...],
    stubs: tuple[str, ...],
    timeout: float,
    seconds: float,
    directory: Path | None,
    patterns: tuple[str, ...],
    subjects: tuple[str, ...],
    seed: int,
    device: str,
    jobs: int,
    baseline: str | None,
) -> None:
    """Search TARGET for broken laws until time is up, with other examples in each round.

    Hypothesis draws for breadth, and reduces what breaks; long examples made of numbers give depth, where a
    workload has them. A way of breaking a law for a subject is saved the moment it is seen, in the folder
    (--dir), and told once: first as it was found, then reduced, with a program that shows it alone. Known
    deviations (--baseline) are not told. The same command goes on where it was, however it ended.

    \b
      kvref fuzz vllm --for 8h                              overnight, all laws
      kvref fuzz vllm --laws 'shadow.*' --for 30m           end to end: does each request read its own?
      kvref replay DIR/traces/LAW-DIGEST.json vllm          show a finding again
    Remove the trace of a finding to have it searched anew.

    \b
    Exit codes:  0    nothing was found, up to now, in this folder
                 1    something was
                 2    bad usage, or the target, the profile or the folder cannot be used
                 130  interrupted; what was found is in the folder
    """
    laws = select_laws(patterns)
    options = Options(laws, seed=seed, jobs=jobs, subjects=subjects)
    worker, declared = prepare(target, profile, python=python, paths=paths, stubs=stubs, timeout=timeout)
    interrupted = False
    console = Console(stderr=True)
    with ExitStack() as stack:
        with progress(console) as watcher:
            one = stack.enter_context(loaded(worker, laws, watcher, declared, device=device))
            runner = one.runner(options, watcher)
            runner.check_subjects()
            if not runner.has_work():
                raise click.UsageError("none of these laws applies to the target; 'kvref doctor' tells why")
            version = one.description["version"]
            folder = directory or Path("kvref-fuzz") / slug(f"{worker.target}-{version}")
            store = stack.enter_context(
                closing(Store(folder, {"name": worker.target, "version": version}, seed))
            )
            known, notes = runner.replay_known(choose_baseline(baseline, one.description))
        fuzzed = Fuzz(runner, store, known, declared, seconds, jobs)
        try:
            with watching(fuzzed, console) as view:
                fuzzed.run(view)
        except KeyboardInterrupt:
            interrupted = True
        render_fuzz(store, notes, Console())
    if interrupted:
        context.exit(EXIT_INTERRUPTED)
    context.exit(1 if store.findings else 0)


@cli.command()
@click.argument("patterns", nargs=-1, metavar="[GLOB]...")
@click.option("-v", "--verbose", is_flag=True, help="Also why each law matters, and its sources.")
@click.option("--markdown", is_flag=True, help="As the page docs/laws.md.")
def laws(patterns: tuple[str, ...], verbose: bool, markdown: bool) -> None:
    """List the laws, all or those that match."""
    selected = [LAWS[law] for law in select_laws(patterns)]
    if markdown:
        click.echo(laws_page(selected), nl=False)
    else:
        render_laws(selected, Console(), verbose)


@cli.command()
@_target_options
def doctor(
    target: str | None,
    profile: str | None,
    python: str | None,
    paths: tuple[str, ...],
    stubs: tuple[str, ...],
    timeout: float,
) -> None:
    """Tell whether TARGET can be loaded, what its profile declares, and what of it can be checked."""
    worker, declared = prepare(target, profile, python=python, paths=paths, stubs=stubs, timeout=timeout)
    with progress(Console(stderr=True)) as watcher, loaded(worker, (), watcher, declared) as one:
        description = one.description
        planned = one.runner(Options(), watcher).left_out()
    click.echo(f"target       {description['name']} {description['version']}")
    if plugin := description["plugin"]:
        click.echo(f"plugin       {plugin['name']} ({plugin['version']})")
    click.echo(f"interpreter  {worker.python} (Python {description['environment']['python']})")
    click.echo(f"torch        {description['environment']['torch']}")
    parts = [part for part in description["parts"] if "." not in part]
    click.echo(f"parts        {', '.join(parts) or 'none'}")
    known = baselines.shipped(description["name"], description["version"])
    click.echo(f"baseline     {known.name or 'none shipped for this version'}")
    classes = ", ".join(info["name"] for info in description["classes"])
    click.echo(f"classes      {visible(classes) or 'none'}")
    if description["threads"] > 1:
        click.echo(
            f"threads      {description['threads']} run after import: forked processes have one, and may "
            "wait for the others"
        )
    for note in (plugin or {"notes": []})["notes"]:
        click.echo(f"note         {note}")
    click.echo(f"profile      {declared.name or declared.note or 'none'}")
    for line in declared.told():
        click.echo(f"  {line}")
    for status, what in ((Status.DECLARED_GAP, "declared gap"), (Status.NOT_APPLICABLE, "left out")):
        for line in by_reason(row for row in planned if row.status is status):
            click.echo(visible(f"{what:12} {line}"))


@cli.command()
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_target_options
@click.pass_context
def replay(
    context: click.Context,
    trace: Path,
    target: str | None,
    profile: str | None,
    python: str | None,
    paths: tuple[str, ...],
    stubs: tuple[str, ...],
    timeout: float,
) -> None:
    """Run a stored TRACE (from a report's traces/) against TARGET again.

    TARGET may be another version than the one it was found in. Exit code 0: the law holds; 1: it breaks.
    """
    try:
        document = json.loads(trace.read_text(encoding="utf-8"))
        schemas.validate(document, "trace")
    except schemas.InvalidDocument:
        raise
    except ValueError as error:
        raise schemas.InvalidDocument("trace", "$", f"not JSON: {error}") from error
    except RecursionError as error:
        raise schemas.InvalidDocument("trace", "$", "nested too deeply") from error
    if document["law"] not in LAWS:
        raise NoSuchLaw(f"{trace}: no law is called {document['law']!r}; 'kvref laws' lists them")
    law = LAWS[document["law"]]
    options = Options(laws=(law.id,))
    worker, declared = prepare(target, profile, python=python, paths=paths, stubs=stubs, timeout=timeout)
    flags = [" ".join(run["flags"]) for run in document["runs"]]
    with (
        progress(Console(stderr=True)) as watcher,
        loaded(worker, (), watcher, declared, flags) as one,
    ):
        broken = one.runner(options, watcher).confirmer.judge(law, document)
    subject = visible(document["subject"], 200)
    click.echo(f"{law.id} [{subject}] in {one.description['name']} {one.description['version']}")
    if broken is None:
        click.echo("holds")
        context.exit(0)
    click.echo(f"breaks\n  expected  {visible(broken.expected)}\n  observed  {visible(broken.observed)}")
    context.exit(1)


@cli.command()
@click.option(
    "--area", "areas", multiple=True, metavar="GLOB", help="Only faults of these areas, e.g. 'pool'."
)
@_seed_option
@_jobs_option
@click.option("--json", "as_json", is_flag=True, help="Print the matrix as JSON.")
@_output_option
@click.pass_context
def faults(
    context: click.Context, areas: tuple[str, ...], seed: int, jobs: int, as_json: bool, output: Path | None
) -> None:
    """Break the reference in many ways, and see which laws notice, and how soon.

    Each fault is judged by the laws of its area; the reference as it is, the control, by all of these. All
    areas take a quarter of an hour on two cores. A fault is a target like any other:

    \b
      kvref faults --area pool                                          a minute
      kvref check kvref_conformance.faults.pool:null_block_gets_a_key   one fault, with its smallest example

    \b
    Exit codes:  0  each fault broke the law that is there for it, and the control none
                 1  one did not, or the control did
                 2  bad usage
                 3  something could not be judged to the end
    """
    chosen = fault_matrix.faults(areas)
    with progress(Console(stderr=True)) as watcher:
        watcher.phase(f"trying {len(chosen)} faults")
        tried = list(fault_matrix.try_all(chosen, seed, jobs, watcher))
    if output is not None:
        asked = "".join(f" --area {shlex.quote(area)}" for area in areas) + (
            f" --seed {seed}" if seed else ""
        )
        output.write_text(fault_page(tried, f"kvref faults{asked}"), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(fault_matrix.document(tried, seed), indent=1))
    else:
        render_faults(tried, Console())
    if not all(each.as_it_should_be for each in tried):
        context.exit(1)
    context.exit(EXIT_CODES[Verdict.INCOMPLETE] if any(each.trial.open for each in tried) else 0)


@cli.group(invoke_without_command=True)
@click.pass_context
def hosts(context: click.Context) -> None:
    """List the releases of vLLM that can be checked side by side, as 'vllm==VERSION'."""
    if context.invoked_subcommand is not None:
        return
    for version in releases.VERSIONS:
        host = releases.find(version)
        where = host.folder or host.python
        click.echo(f"vllm=={version:8} {f'prepared      {where}' if host.prepared else 'not prepared'}")


@hosts.command("prepare")
@click.argument("versions", nargs=-1, metavar="[VERSION]...")
def prepare_hosts(versions: tuple[str, ...]) -> None:
    """Download and set up releases of vLLM, all or those named.

    Makes one environment with PyTorch and the requirements of the newest release (2.3 GB), and a folder for
    each of the others (0.4 GB), below ${KVREF_CACHE:-${XDG_CACHE_HOME:-~/.cache}/kvref}. What is there is
    kept. With KVREF_VLLM_PYTHON, the environment of that interpreter is used instead.
    """
    for host in [releases.find(version) for version in versions or releases.VERSIONS]:
        releases.prepare(host.version, lambda text: click.echo(f"kvref: {text}", err=True))
        click.echo(f"vllm=={host.version} is prepared")


@cli.command()
@_laws_option
@click.option("--versions", metavar="VERSION,...", help="Only these releases; by default all of them.")
@_depth_option
@_seed_option
@_jobs_option
@_output_option
@click.pass_context
def matrix(
    context: click.Context,
    patterns: tuple[str, ...],
    versions: str | None,
    depth: str,
    seed: int,
    jobs: int,
    output: Path | None,
) -> None:
    """Check the prepared releases of vLLM, and print, or write with -o, which law holds in which of them.

    Takes minutes for each release. What is found is kept: interrupted, the same command goes on where it was.

    \b
    Exit codes:  0  every law was judged for every release, whatever came of it
                 2  bad usage, or none of the releases is prepared
                 3  a release is not prepared, or something could not be judged to the end
    """
    options = Options(laws=select_laws(patterns), depth=depth, seed=seed, jobs=jobs)
    chosen = [releases.find(version) for version in (versions.split(",") if versions else releases.VERSIONS)]
    if not any(host.prepared for host in chosen):
        raise releases.HostError("none of these releases is prepared; this does it: kvref hosts prepare")
    kept = matrices.Kept(options)
    reports: dict[str, dict[str, Any] | None] = {}
    with progress(Console(stderr=True)) as watcher:
        for host in chosen:
            name = f"vllm=={host.version}"
            report = kept.load(host.version) if host.prepared else None
            if report is None and host.prepared:
                watcher.phase(f"checking {name}")
                worker, _ = prepare(name, "none", python=None, paths=(), stubs=())
                with loaded(worker, options.laws, watcher) as one:
                    result = one.check(options, choose_baseline(None, one.description), watcher)
                report = report_document(result)
                kept.save(host.version, report)
            reports[host.version] = report
    asked = [f" --laws {shlex.quote(pattern)}" for pattern in patterns]
    asked += [f" --versions {versions}"] if versions else []
    asked += [f" --depth {depth}"] if depth != "quick" else []
    asked += [f" --seed {seed}"] if seed else []
    text = matrices.page(reports, options, f"kvref matrix{''.join(asked)}")
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
    context.exit(0 if matrices.is_complete(reports, options.laws) else EXIT_CODES[Verdict.INCOMPLETE])
