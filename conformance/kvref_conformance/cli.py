"""The command line: what there is to call; what a command does is elsewhere."""

from __future__ import annotations

import json
import shlex
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

import kvref
from kvref_conformance import (
    baseline as baselines,
    diff as diffs,
    fault_matrix,
    hosts as releases,
    matrix as matrices,
    schemas,
)
from kvref_conformance.bench.command import bench
from kvref_conformance.check import NoSuchLaw, choose_baseline, find_law, is_symbolic, loaded, select_laws
from kvref_conformance.ending import EXIT_INTERRUPTED, Group
from kvref_conformance.findings import Store
from kvref_conformance.fuzz import Fuzz
from kvref_conformance.init import Wanted, badge, start
from kvref_conformance.laws import LAWS
from kvref_conformance.options import (
    Choice,
    as_duration,
    as_seconds,
    as_writable,
    backend_option,
    baseline_option,
    coverage_option,
    coverage_source_option,
    depth_option,
    device_option,
    jobs_option,
    laws_option,
    output_option,
    seed_option,
    subjects_option,
    target_options,
)
from kvref_conformance.prove import document, exit_code, prove as prove_all, select
from kvref_conformance.reached import needs_library
from kvref_conformance.report import claim, progress, render, render_laws, write_report
from kvref_conformance.report.diff import markdown as diff_markdown, render_diff
from kvref_conformance.report.doctor import render_target
from kvref_conformance.report.explain import render_explanation
from kvref_conformance.report.faults import page as fault_page, render_faults
from kvref_conformance.report.files import report_document
from kvref_conformance.report.fuzzing import render_fuzz, watching
from kvref_conformance.report.lawbook import laws_page
from kvref_conformance.report.proving import render_count, render_proof
from kvref_conformance.report.text import slug, visible
from kvref_conformance.results import EXIT_CODES, Verdict
from kvref_conformance.runner import DEPTH, Options


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(kvref.__version__, prog_name="kvref")
def cli() -> None:
    """Check that a KV-cache implementation keeps the laws an LLM engine relies on.

    A TARGET is 'reference' (kvref's own, the default if no profile names one), 'reference:fast' or
    'reference:plain' (one half of it: a check of 'reference' is of the plain half, a benchmark of the fast
    one), 'vllm' (the one installed), 'vllm==VERSION' (a release that 'kvref hosts' prepared), 'vllm:PLUGIN' or 'vllm==VERSION:PLUGIN' (with
    that platform plugin), 'package.module:factory' for any other (docs/targets.md), or the name of one of
    several profiles in a file (docs/profile.md).
    """


@cli.command()
@target_options
@laws_option
@subjects_option
@depth_option
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop after this long; by default the profile's, if it has one.",
)
@seed_option
@backend_option
@device_option
@click.option(
    "--report", type=click.Path(file_okay=False, path_type=Path), help="Folder to write a report to."
)
@click.option(
    "--beside",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Report of another version, for a table of laws by version on the page. Can be repeated.",
)
@jobs_option
@click.option("--json", "as_json", is_flag=True, help="Print report.json instead of tables.")
@click.option("--strict", is_flag=True, help="Broken robustness laws count, too.")
@baseline_option
@click.option(
    "--save-baseline",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=as_writable,
    help="Write what was found broken as a baseline to review.",
)
@coverage_option
@coverage_source_option
@click.pass_context
def check(
    context: click.Context,
    choice: Choice,
    patterns: tuple[str, ...],
    subjects: tuple[str, ...],
    depth: str | None,
    budget: float | None,
    seed: int,
    backend: str,
    device: str,
    report: Path | None,
    beside: tuple[Path, ...],
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
    if beside and report is None:
        raise click.UsageError("--beside is for the page of a report: say where, by --report DIR")
    others = [diffs.read(path) for path in beside]
    if report is not None:
        claim(report)
    symbolic = is_symbolic(backend, laws)
    worker, declared = choice.prepare()
    depth, budget = depth or declared.depth or DEPTH, declared.budget if budget is None else budget
    options = Options(laws, depth, seed, budget, jobs, strict, subjects, symbolic=symbolic)
    worker = replace(worker, measured=measured, symbolic=symbolic)
    with (
        progress(Console(stderr=True)) as watcher,
        loaded(worker, laws, watcher, declared, device=device) as one,
    ):
        result = one.check(options, choose_baseline(baseline, one.description), watcher)
    result.elapsed_seconds = time.monotonic() - started
    if report is not None:
        write_report(result, report, others)
    if save_baseline is not None:
        baselines.save(result, save_baseline)
    if as_json:
        click.echo(json.dumps(report_document(result), indent=1))
    else:
        render(result, Console(), report)
    context.exit(EXIT_CODES[result.verdict])


@cli.command()
@target_options
@click.option(
    "--for",
    "seconds",
    metavar="TIME",
    default="10m",
    show_default=True,
    callback=as_duration,
    help="How long, e.g. 30s, 10m, 2h. What is being reduced then gets a minute more.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to keep findings and progress in; by default kvref-fuzz/TARGET-VERSION.",
)
@laws_option
@subjects_option
@seed_option
@device_option
@jobs_option
@baseline_option
@click.pass_context
def fuzz(
    context: click.Context,
    choice: Choice,
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
    worker, declared = choice.prepare()
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
@click.option("--only", "patterns", multiple=True, metavar="GLOB", help="Only these, e.g. 'memory.*'.")
@click.option(
    "--limit",
    default=20.0,
    show_default=True,
    callback=as_seconds,
    help="Seconds that each contract gets.",
)
@jobs_option
@click.option("--json", "as_json", is_flag=True, help="Print a document (schema kvref.prove/1).")
@click.pass_context
def prove(context: click.Context, patterns: tuple[str, ...], limit: float, jobs: int, as_json: bool) -> None:
    """Prove what is claimed of the reference's arithmetic, or find numbers for which it does not hold.

    A claim is a contract: a function of numbers, in kvref_conformance.proofs, that says whether it holds for
    them. CrossHair runs it with numbers that are not known yet, and has a solver say which ways through the
    code are possible. Each contract comes to one of these:

    \b
      proved             it holds for all numbers that it is about: every way was followed
      no counterexample  none was found in the time that there was (--limit)
      counterexample     it does not hold for the numbers told; Python, without CrossHair, says so as well

    \b
      kvref prove                                all of them, less than a minute
      kvref prove --only 'pages.*'               those of one area: pages, memory, rules, planning, addresses
      kvref prove --only 'rules.*' --limit 120   with more time to prove what takes more

    \b
    Exit codes:  0  there is no counterexample
                 1  there is one
                 2  bad usage, or CrossHair is not installed
                 3  a contract could not be examined
    """
    chosen = select(patterns)
    console, proofs = Console(), []
    with progress(Console(stderr=True)) as watcher, closing(prove_all(chosen, limit, jobs, watcher)) as found:
        for proof in found:
            proofs.append(proof)
            if not as_json:
                render_proof(proof, console)
    proofs.sort(key=lambda proof: chosen.index(proof.contract))
    if as_json:
        click.echo(json.dumps(document(proofs), indent=1))
    else:
        render_count(proofs, console)
    context.exit(exit_code(proofs))


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
@click.argument("law")
def explain(law: str) -> None:
    """Tell all of one LAW: what it asks for and why, what it needs, what breaks it, and what to do then."""
    render_explanation(find_law(law), Console())


@cli.command()
@target_options
def doctor(
    choice: Choice,
) -> None:
    """Tell whether TARGET can be loaded, what its profile declares, and what of it can be checked."""
    worker, declared = choice.prepare()
    with progress(Console(stderr=True)) as watcher, loaded(worker, (), watcher, declared) as one:
        description = one.description
        planned = one.runner(Options(), watcher).left_out()
        render_target(worker, one.profile, description, planned)


@cli.command()
@target_options
def init(choice: Choice) -> None:
    """Write a profile for TARGET, kvref.toml, and a workflow for GitHub Actions into the current folder.

    TARGET is loaded, to see that it can be, and what has to be said of it. What is there is left as it is.
    """
    worker, declared = choice.prepare()
    with progress(Console(stderr=True)) as watcher, loaded(worker, (), watcher, declared) as one:
        asked = declared.target if choice.target in (None, declared.label) else choice.target
        wanted = Wanted(asked or worker.target, worker.stubs, (*choice.paths, *declared.paths))
        made = start(Path(), wanted, one.description)
    for path in made.written:
        click.echo(f"written      {path}")
    for path in made.kept:
        about = f", about {declared.target}" if str(path) == declared.name and declared.target else ""
        click.echo(f"left as is   {path}{about}")
    for note in declared.notes:
        click.echo(f"note         {visible(note)}")
    click.echo(f"badge        {badge()}")


@cli.command()
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@target_options
@click.pass_context
def replay(
    context: click.Context,
    trace: Path,
    choice: Choice,
) -> None:
    """Run a stored TRACE (from a report's traces/) against TARGET again.

    TARGET may be another version than the one it was found in. Exit code 0: the law holds; 1: it breaks.
    """
    document = schemas.parse(trace.read_bytes(), "trace")
    if document["law"] not in LAWS:
        raise NoSuchLaw(f"{trace}: no law is called {document['law']!r}; 'kvref laws' lists them")
    law = LAWS[document["law"]]
    options = Options(laws=(law.id,))
    worker, declared = choice.prepare()
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
@click.argument("old", type=click.Path(exists=True, path_type=Path))
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@click.option("--markdown", "told", flag_value="markdown", help="Print a summary for a pull request.")
@click.option("--json", "told", flag_value="json", help="Print the changes as JSON.")
@click.pass_context
def diff(context: click.Context, old: Path, new: Path, told: str | None) -> None:
    """Tell what has changed from report OLD to report NEW: files report.json, or their folders.

    A row got worse if it held and does not, if it is broken or stale now, or if it was judged and now could
    not be. What was different when the reports were made (depth, seed, versions, ...) is told.

    \b
    Exit codes:  0  nothing got worse
                 1  something did
                 2  bad usage, or a file is no report that this version can read
    """
    changed = diffs.compare(diffs.read(old), diffs.read(new))
    if told == "json":
        click.echo(json.dumps(diffs.document(changed), indent=1))
    elif told == "markdown":
        click.echo(diff_markdown(changed), nl=False)
    else:
        render_diff(changed, Console())
    context.exit(1 if changed.worse else 0)


@cli.command()
@click.option(
    "--area", "areas", multiple=True, metavar="GLOB", help="Only faults of these areas, e.g. 'pool'."
)
@seed_option
@jobs_option
@click.option("--json", "as_json", is_flag=True, help="Print the matrix as JSON.")
@output_option
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
@laws_option
@click.option("--versions", metavar="VERSION,...", help="Only these releases; by default all of them.")
@depth_option
@seed_option
@jobs_option
@output_option
@click.pass_context
def matrix(
    context: click.Context,
    patterns: tuple[str, ...],
    versions: str | None,
    depth: str | None,
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
    options = Options(laws=select_laws(patterns), depth=depth or DEPTH, seed=seed, jobs=jobs)
    chosen = [releases.find(version) for version in (versions.split(",") if versions else releases.VERSIONS)]
    if not any(host.prepared for host in chosen):
        raise releases.HostError("none of these releases is prepared; this does it: kvref hosts prepare")
    with progress(Console(stderr=True)) as watcher:
        reports = matrices.check_all(chosen, options, watcher)
    asked = [f" --laws {shlex.quote(pattern)}" for pattern in patterns]
    asked += [f" --versions {versions}"] if versions else []
    asked += [f" --depth {options.depth}"] if options.depth != DEPTH else []
    asked += [f" --seed {seed}"] if seed else []
    text = matrices.page(reports, options, f"kvref matrix{''.join(asked)}")
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
    context.exit(0 if matrices.is_complete(reports, options.laws) else EXIT_CODES[Verdict.INCOMPLETE])


cli.add_command(bench)
