"""Stock vLLM beside the reference in `kvref bench`: both do the same, and what vLLM lacks is left out."""

import json
import subprocess
import sys
from typing import Any

from running import PYTHON

LACKING = {
    ("sharing.join", "chain", 5),
    ("tensors.allocate", "buffers", "each"),
    ("tensors.reshape", "buffers", "each"),
    ("tensors.reshape", "layout", "LKBNHC"),
    ("canonical.register", "layout", "LKBNHC"),
    *(("canonical.copy", "layout", layout) for layout in ("LBNHC", "LKBNHC", "BLNHC")),
}
"""Benchmarks with a parameter for which this version has nothing to call."""


def test_both_do_the_same_but_for_what_is_not_there() -> None:
    command = [sys.executable, "-m", "kvref_conformance", "bench", "vllm", "reference", "--python", PYTHON]
    ran = subprocess.run(
        [*command, "--quick", "--rounds", "5", "--json"],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    assert told["environment"]["way"] == "bench"
    alone = [each for each in told["benchmarks"] if each["ratio"] is None]
    assert {each["name"] for each in alone} == {name for name, _, _ in LACKING}
    for each in told["benchmarks"]:
        about = {(each["name"], name, value) for name, value in each["params"].items()}
        assert [*each["targets"]] == ["vllm", "reference"][bool(about & LACKING) :]
