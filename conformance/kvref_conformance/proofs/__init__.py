"""Contracts: what is claimed of the reference's arithmetic, for CrossHair to prove or to break.

A contract is a function of numbers that returns whether its claim holds for them. Its docstring says the
claim, then for which arguments it is made (`pre:`), and that the answer has to be true (`post: _`), as in
PEP 316. A claim is a definition, a bound, or a count; it does not repeat the formula that it is about.

Nothing in these modules needs CrossHair: they can be called with any numbers.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["MODULES", "Contract", "Verdict", "contracts"]

MODULES = [f"{__name__}.{area}" for area in ("pages", "memory", "rules", "planning", "addresses")]


class Verdict(StrEnum):
    """What can be said of a contract."""

    PROVED = "proved"
    """It holds for all arguments that it is about."""
    UNBROKEN = "no counterexample"
    """None was found in the time that there was."""
    BROKEN = "counterexample"
    """There is one, and Python, without CrossHair, says so as well."""
    UNEXAMINED = "not examined"
    """It could not be looked at: its process ended, or no arguments meet its preconditions."""


@dataclass(frozen=True)
class Contract:
    """One claim."""

    function: Callable[..., bool]

    @property
    def name(self) -> str:
        """Area and function: `pages.pages_are_aligned`."""
        return f"{self.function.__module__.rpartition('.')[2]}.{self.function.__name__}"

    @property
    def claim(self) -> str:
        """What the docstring says before its conditions, in one line."""
        told = re.split(r"^(?:pre|post):", inspect.getdoc(self.function) or "", flags=re.MULTILINE)[0]
        return " ".join(told.split())


def contracts(modules: Iterable[str] | None = None) -> dict[str, Contract]:
    """Every contract of some modules, by default of all, by name. Imports PyTorch, as the reference does."""
    found = {}
    for module in map(importlib.import_module, MODULES if modules is None else modules):
        for function in vars(module).values():
            own = inspect.isfunction(function) and function.__module__ == module.__name__
            if own and "\n    post: _\n" in (function.__doc__ or ""):
                contract = Contract(function)
                found[contract.name] = contract
    return found
