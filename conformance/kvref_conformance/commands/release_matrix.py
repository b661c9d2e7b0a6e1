"""Check several releases of vLLM, and make the page that shows which release keeps which law.

A check takes minutes, so kvref keeps its report on disk. A later run uses this report if the laws, the depth,
the seed and kvref's own sources are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvref_conformance.documents.results import Status
from kvref_conformance.laws import LAWS
from kvref_conformance.processes import releases as hosts
from kvref_conformance.processes.launch import OWN_PACKAGES, package_folders
from kvref_conformance.processes.releases import Host
from kvref_conformance.report.cells import INCOMPLETE, cell
from kvref_conformance.report.files import report_document
from kvref_conformance.running.checker import Options
from kvref_conformance.running.loading import choose_baseline, loaded, prepare
from kvref_conformance.running.progress import Progress

NOT_PREPARED = "not prepared"

_OPEN = (Status.UNCONFIRMED, Status.INCOMPLETE)

_HEAD = """# Laws by release of vLLM

Made by `{command}`; do not edit it. Depth {depth}, seed {seed}. For the details of a cell, run
`kvref check vllm==RELEASE --laws LAW`. For the releases, see [versions.md](versions.md).

* **broken**: a known or a new trace breaks the law; *n/m*: for *n* of the *m* subjects (spec classes, for
  example) that the law was judged on;
* holds: no example broke it;
* n.a.: the release does not implement what the law is about;
* incomplete: not judged completely; not prepared: not judged at all.
"""


class Kept:
    """The reports that earlier runs kept on disk, for the same options and the same sources of kvref."""

    def __init__(self, options: Options) -> None:
        self._digest = _digest(options)

    def load(self, version: str) -> dict[str, Any] | None:
        try:
            document = json.loads(self._path(version).read_text(encoding="utf-8"))
            report: dict[str, Any] = document["report"]
            return report if document["digest"] == self._digest else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def save(self, version: str, report: dict[str, Any]) -> None:
        """Keep the report if every law was judged completely.

        An incomplete check is not kept, because the next try may be complete.
        """
        if any(row["status"] in _OPEN for row in report["laws"]):
            return
        path = self._path(version)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"digest": self._digest, "report": report}), encoding="utf-8")
        partial.replace(path)

    @staticmethod
    def _path(version: str) -> Path:
        return hosts.cache_directory() / "matrix" / f"vllm-{version}.json"


def _digest(options: Options) -> str:
    """A digest of the options and of kvref's sources. They decide what a check of a release finds."""
    digest = hashlib.sha256(json.dumps([options.laws, options.depth, options.seed]).encode())
    for package, folder in sorted(package_folders(OWN_PACKAGES).items()):
        for path in sorted((Path(folder) / package).rglob("*")):
            if path.suffix in (".py", ".json"):
                digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def check_all(
    releases: Sequence[Host], options: Options, watcher: Progress
) -> dict[str, dict[str, Any] | None]:
    """The report of each release, kept or from a new check. None if the release is not prepared."""
    kept = Kept(options)
    reports: dict[str, dict[str, Any] | None] = {}
    for host in releases:
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
    return reports


def cells(report: Mapping[str, Any] | None, laws: Sequence[str]) -> dict[str, str]:
    """Maps each law to the text of its cell for one release. `report` is None if it is not prepared."""
    if report is None:
        return dict.fromkeys(laws, NOT_PREPARED)
    found = {law: cell([row for row in report["laws"] if row["id"] == law]).text for law in laws}
    return {law: text.replace("broken", "**broken**") for law, text in found.items()}


def is_complete(reports: Mapping[str, Mapping[str, Any] | None], laws: Sequence[str]) -> bool:
    """Whether every law has been judged for every release."""
    columns = [cells(report, laws).values() for report in reports.values()]
    return not any(INCOMPLETE in text or text == NOT_PREPARED for column in columns for text in column)


def page(reports: Mapping[str, Mapping[str, Any] | None], options: Options, command: str) -> str:
    """The page, in Markdown: a table of laws by release."""
    columns = {version: cells(report, options.laws) for version, report in reports.items()}
    lines = [_HEAD.format(command=command, depth=options.depth, seed=options.seed)]
    for area in dict.fromkeys(LAWS[law].area for law in options.laws):
        lines += [
            f"## {area}\n",
            f"| law | {' | '.join(columns)} |",
            "|---" * (1 + len(columns)) + "|",
            *(
                f"| {law} | {' | '.join(column[law] for column in columns.values())} |"
                for law in options.laws
                if LAWS[law].area == area
            ),
            "",
        ]
    return "\n".join(lines)
