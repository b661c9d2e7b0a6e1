"""Targets whose operations end the process, hang or give invalid answers. Some do so only sometimes.

Most have only one spec class for layers, so that a check ends soon.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import hostile_toy
from hostile_toy import build, lookup


def target(**replaced: Any) -> Any:
    """The toy with only one spec class for layers."""
    return hostile_toy.target(**{"classes": lambda: hostile_toy.classes()[:2], **replaced})


def started() -> None:
    """Tell the test that an operation runs. The process has a child by then, which kvref must end."""
    if "HOSTILE_MARKER" in os.environ:
        subprocess.Popen(["sleep", "300"])
        Path(os.environ["HOSTILE_MARKER"]).touch()


# -- ends of the process -----------------------------------------------------------------------------------


def _large(specs: list[dict[str, Any]]) -> bool:
    return specs[0]["fields"]["num_kv_heads"] == 4


def merge_exits() -> Any:
    """Exits only for one size, so the first examples pass."""
    return target(merge=lambda specs: os._exit(0) if _large(specs) else hostile_toy.merge(specs))


def merge_segfaults() -> Any:
    return target(merge=lambda specs: os.kill(os.getpid(), signal.SIGSEGV))


def merge_dies_of_real_time_signal() -> Any:
    return target(merge=lambda specs: os.kill(os.getpid(), signal.SIGRTMIN + 3))


def merge_raises_system_exit() -> Any:
    return target(merge=lambda specs: sys.exit(3))


def merge_hangs_with_children() -> Any:
    """Waits for a child that ignores polite signals, and leaves other children behind."""

    def merge(specs: list[dict[str, Any]]) -> None:
        subprocess.Popen(["sleep", "300"])
        started()
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        subprocess.run(["bash", "-c", "trap '' TERM INT HUP; sleep 300"], check=True)

    return target(merge=merge)


def build_leaves_children() -> Any:
    """Answers, but leaves children behind, some of them in sessions of their own."""
    builds = itertools.count()

    def build_and_leave(spec: dict[str, Any]) -> Any:
        if spec["fields"]["num_kv_heads"] == 8 and next(builds) < 3:
            subprocess.Popen(["sleep", "300"])
            subprocess.Popen(["sleep", "300"], start_new_session=True)
        return build(spec)

    return target(build=build_and_leave)


def merge_hangs_in_programs() -> Any:
    """Ends the process. In a stand-alone program, it hangs instead."""

    def merge(specs: list[dict[str, Any]]) -> None:
        if "--run" in sys.argv:
            started()
            time.sleep(600)
        os._exit(5)

    return target(merge=merge)


def build_closes_everything() -> Any:
    """Closes all files, among them the connection to kvref, and then hangs."""

    def close(spec: dict[str, Any]) -> None:
        os.closerange(3, 256)
        time.sleep(600)

    return target(build=close)


def lookup_dies_once_registered() -> Any:
    """Ends the process at a look-up after a vendor's class was registered.

    So a reduced trace must keep both calls.
    """

    def dying_lookup(spec: dict[str, Any]) -> Any:
        if any(name.startswith("Vendor") for name in hostile_toy.table):
            os.kill(os.getpid(), signal.SIGABRT)
        return lookup(spec)

    return target(lookup=dying_lookup)


def lookup_hangs_once_registered() -> Any:
    def hanging_lookup(spec: dict[str, Any]) -> Any:
        if any(name.startswith("Vendor") for name in hostile_toy.table):
            started()
            time.sleep(600)
        return lookup(spec)

    return target(lookup=hanging_lookup)


def merge_dies_once() -> Any:
    """Ends the first process that merges, and no later one."""

    def merge(specs: list[dict[str, Any]]) -> Any:
        marker = Path(os.environ["HOSTILE_MARKER"])
        if not marker.exists():
            marker.touch()
            os._exit(9)
        return hostile_toy.merge(specs)

    return target(merge=merge)


def build_kills_parent() -> Any:
    """Kills the host that its own process was forked from."""
    return target(build=lambda spec: os.kill(os.getppid(), signal.SIGKILL) or time.sleep(600))


def forks_hang() -> Any:
    """Every process that is forked from the host hangs."""
    os.register_at_fork(after_in_child=lambda: time.sleep(600))
    return target()


# -- answers -----------------------------------------------------------------------------------------------


def build_answers_object() -> Any:
    return target(build=lambda spec: object())


def build_answers_too_much() -> Any:
    return target(build=lambda spec: {**build(spec), "notes": "x" * 20_000_000})


def lookup_answers_object() -> Any:
    return target(lookup=lambda spec: object())


def merge_answers_long_text() -> Any:
    """The answer has an additional field with a very long text, which breaks a law."""

    def merge(specs: list[dict[str, Any]]) -> Any:
        answer = hostile_toy.merge(specs)
        return {**answer, "fields": {**answer["fields"], "note": "y" * 1_000_000}}

    return target(merge=merge)


def changes_its_arguments() -> Any:
    """Merging gives a wrong page size. Building clears its arguments, which a target is free to do."""

    def eating_build(spec: dict[str, Any]) -> Any:
        answer = build(spec)
        spec["fields"].clear()
        return answer

    return target(build=eating_build, merge=merge_loses_field().specs.merge)


def slow_at_first() -> Any:
    """The first three builds are slow, but each ends within a time-out of 2.5 seconds."""
    calls = itertools.count()

    def slow_build(spec: dict[str, Any]) -> Any:
        if next(calls) < 3:
            time.sleep(1.5)
        return build(spec)

    return target(build=slow_build)


def merge_changes_its_mind() -> Any:
    """Every third merge gives a wrong page size."""
    count = itertools.count()

    def merge(specs: list[dict[str, Any]]) -> Any:
        answer = hostile_toy.merge(specs)
        return {**answer, "page_size_bytes": 1} if next(count) % 3 == 2 else answer

    return target(merge=merge)


# -- laws broken -------------------------------------------------------------------------------------------


def merge_loses_field() -> Any:
    """An ordinary bug: merging gives a wrong page size. Both spec classes for layers have it."""

    def merge(specs: list[dict[str, Any]]) -> Any:
        answer = hostile_toy.merge(specs)
        return {**answer, "page_size_bytes": answer["page_size_bytes"] + 1}

    return hostile_toy.target(merge=merge)


def merge_dies() -> Any:
    """Merging ends the process, for both spec classes for layers."""
    return hostile_toy.target(merge=lambda specs: os._exit(5))


def merge_loses_field_then_dies() -> Any:
    """Merging gives a wrong page size. After eleven merges the process ends, so nothing gets reduced."""
    merges = itertools.count()

    def merge(specs: list[dict[str, Any]]) -> Any:
        if next(merges) > 10:
            os._exit(5)
        answer = hostile_toy.merge(specs)
        return {**answer, "page_size_bytes": answer["page_size_bytes"] + 1}

    return hostile_toy.target(merge=merge)


def asserts_only() -> Any:
    """Refuses with an assert, which `python -O` leaves out. So only a robustness law is broken."""

    def register(spec_class: str, manager: str, base: str | None) -> None:
        try:
            hostile_toy.register(spec_class, manager, base)
        except ValueError as error:
            if __debug__:
                raise AssertionError(str(error)) from error

    return hostile_toy.target(register=register, decorate=register)


# -- parts -------------------------------------------------------------------------------------------------


def without_specs() -> Any:
    return target(specs=None)


def without_registry() -> Any:
    return target(registry=None)


def without_attributes() -> Any:
    """Lacks the attributes `specs` and `registry`. Other targets have None there."""
    whole = target()
    del whole.specs, whole.registry
    return whole


def without_merge() -> Any:
    whole = target()
    del whole.specs.merge
    return whole


def without_name() -> Any:
    whole = target()
    del whole.name
    return whole


def with_odd_name() -> Any:
    return target(name=["toy"])


def with_long_version() -> Any:
    return target(version="9" * 100_000)


def with_odd_capabilities() -> Any:
    return target(capabilities={"devices": {1, 2}})


def with_odd_classes() -> Any:
    return target(classes=lambda: [{"name": "FullAttentionSpec"}])


def with_no_classes() -> Any:
    return target(classes=lambda: [])


def classes_hang() -> Any:
    return target(classes=lambda: time.sleep(600))


def classes_die() -> Any:
    return target(classes=lambda: os._exit(4))


def with_thread() -> Any:
    threading.Thread(target=time.sleep, args=[600], daemon=True).start()
    return target()
