"""Options that several commands share, and the functions that read their values."""

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
        raise click.BadParameter("give seconds: more than 0, at most a day (86400)")
    return value


def as_writable(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(value.parent)!r}")
    return value


def as_duration(context: click.Context, parameter: click.Parameter, value: str) -> float:
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value)
    if parts is None or not float(parts[1]):
        raise click.BadParameter("give a time such as 30s, 10m or 2h")
    return float(parts[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[parts[2]]


@dataclass(frozen=True)
class Choice:
    """A target, with the options that say how to load it, as the user gave them on the command line."""

    target: str | None
    profile: str | None
    python: str | None
    paths: tuple[str, ...]
    stubs: tuple[str, ...]
    timeout: float

    def prepare(self) -> tuple[Launch, Profile]:
        """How to launch the target, and its profile. Raises `ProfileError`, `HostError`."""
        return prepare(
            self.target,
            self.profile,
            python=self.python,
            paths=self.paths,
            stubs=self.stubs,
            timeout=self.timeout,
        )


_REPEATED = ("patterns", "subjects", "depth", "seed", "backend", "device", "strict", "baseline")
"""Options that choose what runs. When kvref suggests a next command, it repeats them."""


def invocation() -> Invocation:
    """The target and the options that the user typed for the current command."""
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
        help="The vendor's declarations. Default: kvref.toml here, or [tool.kvref] in pyproject.toml.",
    ),
    click.option("--python", help="Interpreter that loads the target. Default: the one that runs kvref."),
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
        help="Package for hardware that this machine lacks; the plugin gets mocks instead. Can be repeated.",
    ),
    click.option(
        "--timeout",
        default=30.0,
        show_default=True,
        callback=as_seconds,
        help="Seconds that one operation may take. Loading the target may take ten times as long.",
    ),
)


def target_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument that names a target, and the options that say how to load it.

    The command gets all of them as one `Choice`, its parameter `choice`.
    """

    @wraps(command)
    def chosen(*arguments: Any, **options: Any) -> None:
        choice = Choice(**{field.name: options.pop(field.name) for field in fields(Choice)})
        command(*arguments, choice=choice, **options)

    return _with(chosen, click.argument("target", required=False))


def targets_options(command: Callable[..., None]) -> Callable[..., None]:
    """Like `target_options`, but for several targets. The options hold for all of them.

    The command gets a list of `Choice`, its parameter `choices`.
    """

    @wraps(command)
    def chosen(*arguments: Any, targets: tuple[str, ...], **options: Any) -> None:
        shared = {field.name: options.pop(field.name) for field in fields(Choice) if field.name != "target"}
        choices = [Choice(target, **shared) for target in targets or (None,)]
        command(*arguments, choices=choices, **options)

    return _with(chosen, click.argument("targets", nargs=-1, metavar="[TARGET]..."))


def _with(command: Callable[..., None], argument: Callable[..., Any]) -> Callable[..., None]:
    for option in reversed((argument, *_ABOUT_TARGETS)):
        command = option(command)
    return command


laws_option = click.option(
    "--laws",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Only these laws, for example 'spec.*'. Can be repeated.",
)
subjects_option = click.option(
    "--subjects",
    multiple=True,
    metavar="GLOB",
    help="Only these subjects, for example 'SlidingWindow*'. Can be repeated.",
)
depth_option = click.option(
    "--depth",
    type=click.Choice(list(DEPTHS)),
    help=f"Examples for each law and subject: {', '.join(f'{d} {n}' for d, n in DEPTHS.items())}. "
    f"Default: the profile's depth, or {DEPTH}.",
)
seed_option = click.option(
    "--seed", default=0, show_default=True, help="The same seed draws the same examples."
)
device_option = click.option(
    "--device",
    type=click.Choice(DEVICES),
    default=DEVICES[0],
    show_default=True,
    help="Device for tensors.",
)
jobs_option = click.option(
    "-n",
    "jobs",
    type=click.IntRange(min=1),
    default=min(os.cpu_count() or 1, 8),
    show_default="one per core, at most 8",
    help="How many processes work at the same time.",
)
backend_option = click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default=BACKENDS[0],
    show_default=True,
    help="With crosshair, a solver also searches for numbers in TARGET's specs (docs/prove.md).",
)
verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print a line for each law, each accepted failure with its reason, and whole traces.",
)
coverage_option = click.option(
    "--coverage", is_flag=True, help="Also show which lines of TARGET's own code no law reached."
)
coverage_source_option = click.option(
    "--coverage-source",
    "sources",
    multiple=True,
    metavar="MODULE",
    help="Measure this module or package as TARGET's own code; implies --coverage. Can be repeated.",
)
inputs_option = click.option(
    "--inputs", is_flag=True, help="Also show which inputs no example had (docs/inputs.md)."
)
baseline_option = click.option(
    "--baseline",
    metavar="FILE|none",
    help="Known findings. Default: those that kvref ships for the target's release, if any.",
)
output_option = click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=as_writable,
    help="Write a page of Markdown into this file.",
)
