"""Contracts that do not hold, that hang, that are about nothing, or that end their process."""

from __future__ import annotations

import os


def nothing_is_131071(number: int) -> bool:
    """No number is 131071.

    pre: number >= 0
    post: _
    """
    return number != 131_071


def nothing_is_refused(number: int) -> bool:
    """Each number is accepted.

    pre: number >= 0
    post: _
    """
    if number == 77:
        raise ValueError("not this one")
    return True


def wrong_while_traced(number: int) -> bool:
    """CrossHair does not trace this call.

    pre: number >= 0
    post: _
    """
    from crosshair.tracers import is_tracing

    return not is_tracing()


def goes_on_for_ever(number: int) -> bool:
    """The call ends.

    pre: number >= 0
    post: _
    """
    while True:
        pass


def is_about_nothing(number: int) -> bool:
    """Every number that is above and below zero is odd.

    pre: number > 0 and number < 0
    post: _
    """
    return number % 2 == 1


def ends_its_process(number: int) -> bool:
    """The call does not end the process.

    pre: number >= 0
    post: _
    """
    os._exit(7)


def says_much(number: int) -> bool:
    """Printing does no harm.

    pre: number >= 0
    post: _
    """
    print("a line")
    return True
