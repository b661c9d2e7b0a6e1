"""A target without a registry, like old releases of vLLM. Laws that need no registry still judge it."""

from __future__ import annotations

from conftest import Kvref

TARGET = "hostile_reference:WithoutRegistry"


def test_plans(kvref: Kvref) -> None:
    ran, report = kvref.report(TARGET, "--laws", "plan.partition", "--laws", "registry.unregistered-refused")
    assert ran.code == 0
    told = {(row["id"], row["subject"]): (row["status"], row["message"]) for row in report["laws"]}
    for subject in ("a vendor's class", "a vendor's own kind"):
        assert told.pop(("plan.partition", subject)) == ("not-applicable", "there is no registry")
    assert told.pop(("registry.unregistered-refused", ""))[0] == "not-applicable"
    assert told[("plan.partition", "windows")][0] == "holds"
    assert {status for status, _ in told.values()} == {"holds"}
    assert all(row["examples"] for row in report["laws"] if row["status"] == "holds")


def test_what_no_planner_is_given(kvref: Kvref) -> None:
    """Without a registry, nothing says whether a planner knows this class, and it may refuse others."""
    ran, report = kvref.report(TARGET, "--laws", "spec.uniform-total")
    assert ran.code == 0
    states = {row["subject"]: row["status"] for row in report["laws"]}
    assert states.pop("EncoderOnlyAttentionSpec") == "not-applicable"
    assert set(states.values()) == {"holds"}
