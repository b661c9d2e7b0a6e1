"""Options of the commands, and how what is given to them is read."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kvref_conformance.documents.profile import Profile
from kvref_conformance.processes.launch import Launch
from kvref_conformance.report.terminal import Invocation
from kvref_conformance.running.checker import DEPTH, DEPTHS
from kvref_conformance.running.loading import BACKENDS, DEVICES, prepare


def as_seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not 0 < value <= 86_400 or math.isnan(value):
        raise click.BadParameter("give seconds, more than 0 and at most a day")
    return value


def as_writable(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(value.parent)!r}")
    return value


def as_duration(context: click.Context, parameter: click.Parameter, value: str) -> float:
    told = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value)
    if told is None or not float(told[1]):
        raise click.BadParameter("give a time such as 30s, 10m or 2h")
    return float(told[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[told[2]]


@dataclass(frozen=True)
class Choice:
    """A target, as the command line names it."""

    target: str | None
    profile: str | None
    python: str | None
    paths: tuple[str, ...]
    stubs: tuple[str, ...]
    timeout: float

    def prepare(self) -> tuple[Launch, Profile]:
        """How to run it. Raises `ProfileError`, `HostError`."""
        return prepare(
            self.target,
            self.profile,
            python=self.python,
            paths=self.paths,
            stubs=self.stubs,
            timeout=self.timeout,
        )


_REPEATED = ("patterns", "subjects", "depth", "seed", "backend", "device", "strict", "baseline")
"""Options that a next command takes over: they say what is run."""


def invocation() -> Invocation:
    """What the user typed for the current command."""
    context = click.get_current_context()
    target: list[str] = []
    options: list[tuple[str, ...]] = []
    about_target = {field.name for field in fields(Choice)}
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        words = [(parameter.opts[-1], str(each)) for each in (value if parameter.multiple else [value])]
        if isinstance(parameter, click.Argument):
            target += [str(value)] if name in about_target else []
        elif name in about_target:
            target += [word for pair in words for word in pair]
        elif name in _REPEATED:
            options += [(parameter.opts[-1],)] if getattr(parameter, "is_flag", False) else words
    return Invocation(target, options)


_ABOUT_TARGETS = (
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
        callback=as_seconds,
        help="Seconds one operation may take; loading the target may take ten times that.",
    ),
)


def target_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command the options that name a target; it gets what they say as `choice`."""

    @wraps(command)
    def chosen(*arguments: Any, **options: Any) -> None:
        choice = Choice(**{field.name: options.pop(field.name) for field in fields(Choice)})
        command(*arguments, choice=choice, **options)

    return _with(chosen, click.argument("target", required=False))


def targets_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command about several targets, of all of which the options speak; it gets `choices`."""

    @wraps(command)
    def chosen(*arguments: Any, targets: tuple[str, ...], **options: Any) -> None:
        said = {field.name: options.pop(field.name) for field in fields(Choice) if field.name != "target"}
        choices = [Choice(target, **said) for target in targets or (None,)]
        command(*arguments, choices=choices, **options)

    return _with(chosen, click.argument("targets", nargs=-1, metavar="[TARGET]..."))


def _with(command: Callable[..., None], argument: Callable[..., Any]) -> Callable[..., None]:
    for option in reversed((argument, *_ABOUT_TARGETS)):
        command = option(command)
    return command


laws_option = click.option(
    "--laws", "patterns", multiple=True, metavar="GLOB", help="Only these laws, e.g. 'spec.*'."
)
subjects_option = click.option(
    "--subjects", multiple=True, metavar="GLOB", help="Only these, e.g. 'SlidingWindow*'."
)
depth_option = click.option(
    "--depth",
    type=click.Choice(list(DEPTHS)),
    help=f"Examples for each law and subject: {', '.join(f'{d} {n}' for d, n in DEPTHS.items())}. By default "
    f"the profile's, or {DEPTH}.",
)
seed_option = click.option("--seed", default=0, show_default=True, help="Same seed, same examples.")
device_option = click.option(
    "--device",
    type=click.Choice(DEVICES),
    default=DEVICES[0],
    show_default=True,
    help="Where tensors live.",
)
jobs_option = click.option(
    "-n",
    "jobs",
    type=click.IntRange(min=1),
    default=min(os.cpu_count() or 1, 8),
    show_default="one for each processor, 8 at most",
    help="Units of work at a time.",
)
backend_option = click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default=BACKENDS[0],
    show_default=True,
    help="With crosshair, a solver searches the numbers of TARGET's specs, too (docs/prove.md).",
)
verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print a line for each law, what is accepted and why, and all of each trace.",
)
coverage_option = click.option(
    "--coverage", is_flag=True, help="Also show which lines of TARGET's own files no law reached."
)
coverage_source_option = click.option(
    "--coverage-source",
    "sources",
    multiple=True,
    metavar="MODULE",
    help="Take this module or package for TARGET's own; implies --coverage. Can be repeated.",
)
baseline_option = click.option(
    "--baseline",
    metavar="FILE|none",
    help="Known deviations; by default those shipped for the target's version, if any.",
)
output_option = click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=as_writable,
    help="File to write a page of Markdown to.",
)
