"""Contracts: claims about the reference's arithmetic, which CrossHair proves or breaks.

A contract is a function of numbers that returns whether its claim holds for them. Its docstring states the
claim, then the arguments that it covers (`pre:`), and that the result must be true (`post: _`), as in PEP
316. A claim is a definition, a bound or a count. It does not repeat the formula that it is about.

The modules in `MODULES` do not need CrossHair: you can call the contracts with any numbers.
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
    """The result for a contract."""

    PROVED = "proved"
    """The contract holds for all arguments that it covers."""
    UNBROKEN = "no counterexample"
    """No counterexample was found within the time limit."""
    BROKEN = "counterexample"
    """There is a counterexample, confirmed by Python without CrossHair."""
    UNEXAMINED = "not examined"
    """The contract was not examined: its process ended, or no arguments meet its preconditions."""


@dataclass(frozen=True)
class Contract:
    """A contract, given by the function that states it."""

    function: Callable[..., bool]

    @property
    def name(self) -> str:
        """The area and the function, such as `pages.pages_are_aligned`."""
        return f"{self.function.__module__.rpartition('.')[2]}.{self.function.__name__}"

    @property
    def claim(self) -> str:
        """The part of the docstring before `pre:` and `post:`, as one line."""
        text = re.split(r"^(?:pre|post):", inspect.getdoc(self.function) or "", flags=re.MULTILINE)[0]
        return " ".join(text.split())


def contracts(modules: Iterable[str] | None = None) -> dict[str, Contract]:
    """The contracts of these modules, or of all modules, by name. Imports PyTorch, like the reference."""
    found = {}
    for module in map(importlib.import_module, MODULES if modules is None else modules):
        for function in vars(module).values():
            own = inspect.isfunction(function) and function.__module__ == module.__name__
            if own and "\n    post: _\n" in (function.__doc__ or ""):
                contract = Contract(function)
                found[contract.name] = contract
    return found
