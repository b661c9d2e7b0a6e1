"""Runs `kvref check` on vLLM, which has an environment of its own (`tox -e vllm`)."""

import json
import os
import subprocess
import sys
from typing import Any

PYTHON = os.environ["KVREF_VLLM_PYTHON"]
"""The interpreter of an environment with stock vLLM."""


def kvref(target: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run `kvref check` on a target in that environment. Returns the exit code and the report."""
    command = [sys.executable, "-m", "kvref_conformance", "check", target, "--python", PYTHON, "--json"]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=1200, check=False)
    assert ran.stdout, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout)
    return ran.returncode, report


def rows(report: dict[str, Any], law: str) -> list[dict[str, Any]]:
    return [row for row in report["laws"] if row["id"] == law]


def facets(report: dict[str, Any], law: str, status: str) -> set[tuple[str, str]]:
    return {(row["subject"], row["facet"]) for row in rows(report, law) if row["status"] == status}
