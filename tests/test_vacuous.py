"""A law holds only after it has judged a target that worked."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Kvref

from kvref_conformance.targets.codec import class_infos
from kvref_conformance.targets.vllm.blame import own_error
from kvref_strategies.catalogue import WORKLOADS

FULL = ("--subjects", "FullAttentionSpec")
SOME_OF_THE_REGISTRY = ("--laws", "registry.refusals-survive-O", "--laws", "registry.nearest-base")


def rows(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {row["id"]: (row["status"], row["message"]) for row in report["laws"]}


def test_nothing_holds_if_no_request_is_ever_granted(kvref: Kvref) -> None:
    laws = ("coordinator.lookup-total", "manager.references")
    options = [option for law in laws for option in ("--laws", law)]
    ran, report = kvref.report("idle:refuses_every_request", *options, *FULL)
    assert ran.code != 0
    for status, message in rows(report).values():
        assert status == "incomplete"
        assert message.endswith("cache.allocate succeeded in 0; it holds only after 1")


def test_nothing_holds_if_no_cache_is_ever_allocated(kvref: Kvref) -> None:
    ran, report = kvref.report(
        "idle:refuses_every_layout", "--laws", "tensors.layout-stable", "--subjects", "attention"
    )
    assert ran.code != 0
    [(status, message)] = rows(report).values()
    assert status == "incomplete"
    assert "tensors.allocate succeeded in 0" in message


def test_an_error_of_the_adapter_is_not_the_targets(kvref: Kvref) -> None:
    ran, report = kvref.report("idle:passes_a_keyword_too_many", "--laws", "spec.merge-identity", *FULL)
    assert ran.code != 0
    [(status, message)] = rows(report).values()
    assert status == "incomplete"
    assert "the adapter of reference cannot perform specs.merge" in message
    assert "got an unexpected keyword argument 'all_specs'" in message


def test_what_does_not_load_without_asserts_is_judged_with_asserts(kvref: Kvref) -> None:
    ran, report = kvref.report("idle:needs_asserts", *SOME_OF_THE_REGISTRY)
    assert ran.code != 0
    found = rows(report)
    status, message = found.pop("registry.refusals-survive-O")
    assert status == "incomplete"
    assert "under python -O: loading it raised RuntimeError: does not run without asserts" in message
    assert {status for status, _ in found.values()} == {"holds"}


def the_error_of(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        call()
    return raised.value


def test_what_the_adapter_of_vllm_takes_upon_itself() -> None:
    stand_in = SimpleNamespace(cache_config=None)
    lacking = own_error(the_error_of(lambda: stand_in.model_config))
    assert lacking.startswith(
        "AttributeError: 'types.SimpleNamespace' object has no attribute 'model_config'"
    )
    inside = own_error(the_error_of(lambda: class_infos({}, ())))
    assert inside.startswith("StopIteration")
    assert "codec.py:" in inside
    assert own_error(the_error_of(lambda: int("x"))) == ""
    assert own_error(the_error_of(lambda: "".no_such_method)) == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("workload", "operation", "outcome", "worked"),
    [
        ("cache.machine", "cache.allocate", {"value": {"added": [[1]]}}, True),
        ("cache.machine", "cache.allocate", {"value": {"added": None}}, False),
        ("cache.machine", "cache.allocate", {"error": {"type": "ValueError", "message": ""}}, False),
        ("cache.machine", "cache.lookup", {"value": {"tokens": 0}}, False),
        ("specs.pages", "specs.build", {"value": {}}, True),
        ("specs.pages", "specs.build", {"error": {"type": "ValueError", "message": ""}}, False),
    ],
)
def test_worked(workload: str, operation: str, outcome: dict[str, Any], worked: bool) -> None:
    assert WORKLOADS[workload].worked([[{"op": operation, "args": {}, "outcome": outcome}]]) is worked
