"""Tell what a run found: files for machines and issues, text for the terminal."""

from kvref_conformance.report.files import ForeignDirectory, claim, write_report
from kvref_conformance.report.names import trace_digest
from kvref_conformance.report.progress import Progress, progress
from kvref_conformance.report.terminal import by_reason, render, render_laws

__all__ = [
    "ForeignDirectory",
    "Progress",
    "by_reason",
    "claim",
    "progress",
    "render",
    "render_laws",
    "trace_digest",
    "write_report",
]
