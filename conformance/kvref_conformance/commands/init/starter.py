"""Write the first files into an implementation's repository: a profile, and a workflow for CI."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

import kvref
from kvref_conformance.documents.profile_file import FILE, find
from kvref_conformance.targets import without_release
from kvref_strategies.specs import judged, missing_fields
from kvref_strategies.workload import Description

WORKFLOW = Path(".github", "workflows", "kvref.yml")


@dataclass(frozen=True)
class Wanted:
    """The target and how to load it, from the command line or from a profile."""

    target: str
    stubs: Sequence[str] = ()
    paths: Sequence[str] = ()


@dataclass(frozen=True)
class Made:
    """The files that were written, and those that were kept because they already existed."""

    written: list[Path]
    kept: list[Path]


def start(folder: Path, wanted: Wanted, description: Description) -> Made:
    """Write the files that do not exist yet. Existing files stay unchanged."""
    made = Made([], [])
    # A profile may be in pyproject.toml as well.
    there = find(folder)
    if there is not None:
        made.kept.append(there)
    else:
        _create(folder / FILE, profile(wanted, description), made)
    _create(folder / WORKFLOW, workflow(wanted), made)
    return made


def profile(wanted: Wanted, description: Description) -> str:
    """The text of a profile with the values that are known. Comments show what the user has to fill in."""
    layers = [info for info in judged(description) if info["role"] == "layer"]
    missing = {info["name"]: fields for info in layers if (fields := missing_fields(info))}
    return _templates().get_template("kvref.toml.jinja").render(wanted=wanted, missing=missing)


def workflow(wanted: Wanted) -> str:
    """The text of a workflow for GitHub Actions.

    It runs a check, and shows what changed since the main branch.
    """
    _, release = without_release(wanted.target)
    template = _templates().get_template("kvref.yml.jinja")
    return template.render(version=kvref.__version__, release=release, paths=wanted.paths)


def badge(repository: str = "OWNER/REPOSITORY") -> str:
    """Markdown that shows a badge in a README. It works when shields.io can read a report's `badge.json`."""
    where = f"https://raw.githubusercontent.com/{repository}/kvref-badge/badge.json"
    return f"![kvref](https://img.shields.io/endpoint?url={where})"


def _create(path: Path, content: str, made: Made) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        made.kept.append(path)
    else:
        made.written.append(path)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("kvref_conformance.commands.init"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update(toml=_toml, key=_key, shell=shlex.quote)
    return templates


def _toml(value: str | list[str]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
