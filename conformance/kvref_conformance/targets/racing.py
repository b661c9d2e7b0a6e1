"""Perform operations (`kvref.target.Step`) in several threads at once, to find races.

Python may interrupt a thread between any two lines. By chance, an interruption that does harm is rare and
cannot be repeated. So this module forces one: it stops the first thread at a given line until all other
threads have ended, or until it is clear that they wait for the first thread. The others run concurrently, and
Python switches between them as often as it can. Each attempt runs in a child of this process.

Stand-alone programs copy functions from this module, so it uses only the standard library.
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
"""Seconds after which kvref assumes that a child hangs."""

HANGS = {"died": f"no end within {CHILD_SECONDS:g} s"}

OTHERS_SECONDS = 0.05
"""Seconds that the interrupted thread waits for each other thread.

The limit is needed because another thread may be waiting for the interrupted one.
"""

Functions = Mapping[str, Callable[..., Any]]
Steps = Sequence[Step]


def race_in_children(functions: Functions, threads: Sequence[Steps], after: Steps, points: int) -> Races:
    """Perform the steps of all threads in sequence, in every possible order, then concurrently.

    There are `points` concurrent attempts. Each interrupts the first thread at a different line. In every
    attempt, the steps in `after` come last. For the result, see `kvref.target.Races`.
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
    """Call `work` in a child of this process. Returns what `work` returned, or how the child died."""
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
    """Perform the steps in sequence. For each number in `order`, that thread performs its next step."""
    answers: list[list[Any]] = [[] for _ in threads]
    for number in order:
        answers[number] += answers_of(functions, [threads[number][len(answers[number])]])
    return {"answers": answers, "after": answers_of(functions, after)}


def count_lines(functions: Functions, steps: Steps) -> int:
    """Count the Python lines that run when a single thread performs these steps."""
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
    """Run the threads concurrently. The first thread waits for the others when it has come to a given line.

    `line` counts the lines that the first thread runs, from 1 on.
    """
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
