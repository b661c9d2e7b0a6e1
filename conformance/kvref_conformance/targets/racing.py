"""Run steps in several threads, in children of the process.

Stand-alone programs copy this module, so it uses only the standard library.

A thread may be interrupted between any two lines. That happens rarely by chance, and cannot be repeated. So
this module makes it happen: the first thread stops at a given line until the other threads have ended or wait
for the first one. The others run concurrently and are switched as often as the interpreter allows.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from kvref.target import Races, Step

CHILD_SECONDS = 10.0
"""A child that takes longer than this counts as hanging."""

HANGS = {"died": f"no end within {CHILD_SECONDS:g} s"}

OTHERS_SECONDS = 0.05
"""How long an interrupted thread waits for each of the others, which may in turn wait for it."""

Functions = Mapping[str, Callable[..., Any]]
Steps = Sequence[Step]


def race_in_children(functions: Functions, threads: Sequence[Steps], after: Steps, points: int) -> Races:
    """Perform the steps one after the other in every order, then `points` times in threads.

    In threads, the first thread is interrupted, each time at another line. For the answer see
    `kvref.target.Races`.
    """
    orders: list[Any] = []
    races: list[Any] = []
    numbers = [number for number, steps in enumerate(threads) for _ in steps]
    for order in sorted(set(itertools.permutations(numbers))):
        note_observation(orders, in_child(in_order, functions, threads, after, order))
    lines = in_child(count_lines, functions, threads[0])
    for point in range(points if isinstance(lines, int) else 0):
        race = in_child(side_by_side, functions, threads, after, 1 + point * lines // points)
        note_observation(races, race)
        if race == HANGS:
            break
    return {"orders": orders, "races": races}


def note_observation(observations: list[Any], observation: Any) -> None:
    if observation not in observations:
        observations.append(observation)


def in_child(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run `work` in a child of this process, and return its answer, or how the child died."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            answer = json.dumps(work(*arguments)).encode()
            while answer:
                answer = answer[os.write(writer, answer) :]
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as answers:
        hangs = not select.select([answers], [], [], CHILD_SECONDS)[0]
        if hangs:
            os.kill(child, signal.SIGKILL)
        text = answers.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if hangs:
        return HANGS
    return json.loads(text) if code == 0 else {"died": f"exit code {code}"}


def answers_of(functions: Functions, steps: Steps) -> list[dict[str, Any]]:
    outcomes: list[dict[str, Any]] = []
    for step in steps:
        try:
            outcomes.append({"value": functions[step["op"]](**step["args"])})
        except Exception as error:
            outcomes.append({"error": {"type": type(error).__name__, "message": str(error)}})
    return outcomes


def in_order(functions: Functions, threads: Sequence[Steps], after: Steps, order: Sequence[int]) -> Any:
    """Perform the steps one after the other. `order` lists the number of the thread whose step is next."""
    answers: list[list[Any]] = [[] for _ in threads]
    for number in order:
        answers[number] += answers_of(functions, [threads[number][len(answers[number])]])
    return {"answers": answers, "after": answers_of(functions, after)}


def count_lines(functions: Functions, steps: Steps) -> int:
    """The number of Python lines that run when these steps run by themselves."""
    count = 0

    def tracer(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return tracer

    sys.settrace(tracer)
    answers_of(functions, steps)
    sys.settrace(None)
    return count


def side_by_side(functions: Functions, threads: Sequence[Steps], after: Steps, line: int) -> Any:
    """Run the threads concurrently. The first one waits for the others at its given line, counted from 1."""
    answers: list[list[Any]] = [[] for _ in threads]
    reached, ended = threading.Event(), threading.Semaphore(0)
    count = 0

    def tracer(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        if count == line and event == "line":
            reached.set()
            all(ended.acquire(timeout=OTHERS_SECONDS) for _ in threads[1:])
        return tracer

    def first() -> None:
        sys.settrace(tracer)
        answers[0] = answers_of(functions, threads[0])
        sys.settrace(None)
        reached.set()

    def other(number: int) -> None:
        reached.wait()
        answers[number] = answers_of(functions, threads[number])
        ended.release()

    sys.setswitchinterval(1e-6)
    others = [threading.Thread(target=other, args=(number,)) for number in range(1, len(threads))]
    running = [threading.Thread(target=first), *others]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return {"answers": answers, "after": answers_of(functions, after)}
