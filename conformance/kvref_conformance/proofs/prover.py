"""The process in which CrossHair searches for arguments that break contracts.

Each contract gets a child process, which is killed when its time is up. Run as `python -m
kvref_conformance.proofs.prover '<json>'`, the process writes a line of JSON when it begins a contract and
when it has a result. It ends when its parent ends.
"""

from __future__ import annotations

import gc
import inspect
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, NamedTuple, TextIO

from crosshair.condition_parser import Conditions
from crosshair.core import ConditionCheckable, analyze_function, deep_realize
from crosshair.core_and_libs import MessageType, run_checkables
from crosshair.options import AnalysisKind, AnalysisOptionSet

from kvref.registry import KVCacheSpecRegistry
from kvref_conformance.processes.exit_codes import how_it_ended
from kvref_conformance.proofs import Verdict, contracts

GRACE_SECONDS = 1.0
"""The time that CrossHair gets to finish after its limit."""


def examine(function: Callable[..., bool], limit: float) -> dict[str, Any]:
    """CrossHair's result within `limit` seconds: a verdict, and the arguments of a counterexample."""
    options = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.PEP316],
        per_condition_timeout=limit,
        per_path_timeout=limit,
        max_uninteresting_iterations=0,  # does not give up before
        report_all=True,
    )
    shown: list[dict[str, Any]] = []

    def note(arguments: inspect.BoundArguments, *_: object) -> tuple[str, str]:
        shown.append(deep_realize(dict(arguments.arguments)))
        return "", ""

    [found] = analyze_function(function, options)
    if not isinstance(found, ConditionCheckable):
        [message] = run_checkables([found])
        return {"verdict": Verdict.UNEXAMINED, "reason": message.message}
    conditions = found.conditions
    found.conditions = replace(conditions, counterexample_description_maker=note)
    # Otherwise it also looks for contracts of all functions called, which takes longer than all the rest.
    found.options = replace(found.options, analysis_kind=[])
    [message] = run_checkables([found])
    if message.state is MessageType.PRE_UNSAT:
        return {"verdict": Verdict.UNEXAMINED, "reason": message.message}
    if message.state is MessageType.CONFIRMED:
        return {"verdict": Verdict.PROVED}
    # CrossHair does not do everything as Python does, so only a counterexample that Python confirms counts.
    broken = [arguments for arguments in shown if breaks(function, conditions, arguments)]
    return (
        {"verdict": Verdict.BROKEN, "counterexample": broken[0]} if broken else {"verdict": Verdict.UNBROKEN}
    )


def breaks(function: Callable[..., bool], conditions: Conditions, arguments: Mapping[str, Any]) -> bool:
    """Whether the contract covers these arguments and does not hold for them."""
    if not all(condition.evaluate(arguments) for condition in conditions.pre if condition.evaluate):
        return False
    try:
        return not function(**arguments)
    except Exception:
        return True


class _Running(NamedTuple):
    name: str
    process: ForkProcess
    started: float


def main() -> None:
    """Examine the contracts that the request names, `jobs` at a time."""
    request = json.loads(sys.argv[1])
    # What a contract or CrossHair prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    known = contracts(request["modules"])
    # The reference looks for a platform once: do this now, before CrossHair traces.
    KVCacheSpecRegistry.initialise()
    # CrossHair collects garbage often: exclude imported modules, to save time.
    gc.freeze()
    waiting = request["names"][::-1]
    running: dict[Connection, _Running] = {}
    while waiting or running:
        while waiting and len(running) < request["jobs"]:
            name = waiting.pop()
            _send(answers, {"began": name})
            near, process = _start(known[name].function, request["limit"])
            running[near] = _Running(name, process, time.monotonic())
        patience = request["limit"] + GRACE_SECONDS
        due = min(one.started for one in running.values()) + patience
        ready = wait([0, *running], max(0.0, due - time.monotonic()))
        if 0 in ready:  # the parent has ended
            break
        for near, one in [*running.items()]:
            seconds = time.monotonic() - one.started
            if near in ready or seconds >= patience:
                answer = _answer(near, one) if near in ready else {"verdict": Verdict.UNBROKEN}
                _end(near, running.pop(near))
                _send(answers, {"name": one.name, "seconds": round(seconds, 3), **answer})
    for near, one in running.items():
        _end(near, one)


def _start(function: Callable[..., bool], limit: float) -> tuple[Connection, ForkProcess]:
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe(duplex=False)

    def child() -> None:
        try:
            answer = examine(function, limit)
        except BaseException as error:
            answer = {"verdict": Verdict.UNEXAMINED, "reason": f"{type(error).__name__}: {error}"}
        far.send(answer)

    process = context.Process(target=child)
    process.start()
    far.close()
    return near, process


def _answer(near: Connection, one: _Running) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = near.recv()
    except EOFError:
        one.process.join()
        return {"verdict": Verdict.UNEXAMINED, "reason": how_it_ended(one.process.exitcode or 0)}
    return answer


def _end(near: Connection, one: _Running) -> None:
    near.close()
    one.process.kill()
    one.process.join()


def _send(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    main()
