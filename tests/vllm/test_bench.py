"""`kvref bench` of stock vLLM and the reference: both do the same work, and what vLLM lacks is left out."""

import json
import subprocess
import sys
from typing import Any

import pytest
from running import PYTHON
from test_differential import Target, loaded

from kvref_conformance.bench.cache import DECODES, PROMPT
from kvref_conformance.processes.launch import Launch
from kvref_conformance.targets.bench_models import BLOCK_SIZE, GROUPS

LACKING = {
    ("sharing.join", "chain", 5),
    ("tensors.allocate", "buffers", "each"),
    ("tensors.reshape", "buffers", "each"),
    ("tensors.reshape", "layout", "LKBNHC"),
    ("canonical.register", "layout", "LKBNHC"),
    *(("canonical.copy", "layout", layout) for layout in ("LBNHC", "LKBNHC", "BLNHC")),
}
"""Benchmarks with a parameter value for which this version of vLLM has nothing to call."""


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


LIVES = 4


@pytest.fixture(scope="module", params=GROUPS)
def caches(request: pytest.FixtureRequest) -> Any:
    """A cache of vLLM and one of the reference. Two and a half requests fit, so blocks are evicted."""
    groups = [{"spec": spec, "eagle": False} for spec in GROUPS[request.param]]
    blocks = len(groups) * (PROMPT + DECODES) // BLOCK_SIZE
    with loaded(Launch("vllm", PYTHON)) as theirs, loaded(Launch("reference")) as ours:
        for target in (theirs, ours):
            ask(
                target,
                "create",
                groups=groups,
                num_blocks=blocks * 5 // 2,
                scheduler_block_size=BLOCK_SIZE,
                hash_block_size=BLOCK_SIZE,
                max_model_len=2 * PROMPT,
                max_in_flight_tokens=2 * PROMPT,
                enable_caching=True,
                use_eagle=False,
                max_encoder_tokens=0,
            )
        yield theirs, ours


@pytest.mark.parametrize("hits", [False, True])
def test_lives_are_the_same_block_by_block(caches: tuple[Target, Target], hits: bool) -> None:
    """Performs what `cache.life` times. In each step, both have the same block numbers in all tables."""
    for number in range(LIVES):
        lives = [life(target, f"{hits} {number}", 0 if hits else 1 + number, number) for target in caches]
        assert lives[0] == lives[1]
        found, *tables = lives[0]
        assert found == (PROMPT - BLOCK_SIZE if hits and number else 0)
        assert len(tables) == 1 + DECODES


def life(target: Target, name: str, token: int, output: int) -> list[Any]:
    """Run a request to its end. Returns the length of its hit, and its block tables in each step."""
    ask(target, "add", request=name, tokens=[token] * PROMPT, max_tokens=DECODES + 1, salt=None)
    told: list[Any] = []
    for computed in range(PROMPT, PROMPT + DECODES + 1):
        ask(target, "new_step")
        if computed == PROMPT:
            hit = ask(target, "lookup", request=name)
            told.append(hit["tokens"])
            got = ask(target, "allocate", request=name, new=PROMPT - hit["tokens"], hit=hit)
        else:
            got = ask(target, "allocate", request=name, new=1)
        assert got["added"] is not None
        told.append(ask(target, "block_ids", request=name))
        ask(target, "progress", request=name, computed=computed, in_flight=0, output=[output])
    ask(target, "free", request=name)
    return told


def ask(target: Target, operation: str, **arguments: Any) -> Any:
    outcome = target.perform(f"cache.{operation}", arguments)
    assert "error" not in outcome, outcome
    return outcome.get("value")
