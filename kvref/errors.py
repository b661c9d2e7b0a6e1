"""The refusals of kvref.

Each is a subclass of the built-in exception that a caller of the same function in vLLM would catch, and none
is raised by `assert`: a refusal must survive `python -O`.
"""

from __future__ import annotations

__all__ = [
    "BlockError",
    "ConflictingRegistrationError",
    "InvalidConfigError",
    "InvalidRequestError",
    "InvalidSpecError",
    "KVSharingError",
    "OutOfCacheMemoryError",
    "PlatformError",
    "PoolExhaustedError",
    "RegistrationError",
    "SpecKindError",
    "SpecMergeError",
    "UnregisteredSpecError",
]


class InvalidSpecError(ValueError):
    """A spec, or a number it is sized with, cannot be right: names class, field and value."""


class SpecMergeError(ValueError):
    """Specs that do not describe the same cache were to be merged."""


class RegistrationError(ValueError):
    """A registration that makes no sense, whatever is registered already."""


class ConflictingRegistrationError(RegistrationError):
    """The name or class is registered already, and differently. What was registered stays."""


class UnregisteredSpecError(RegistrationError, LookupError):
    """A spec class that nobody registered, nor any ancestor of it."""


class SpecKindError(TypeError):
    """A manager was given a spec of a kind it does not manage."""


class BlockError(ValueError):
    """Blocks were taken, given back or named in a way that cannot be right. Nothing has changed."""


class PoolExhaustedError(BlockError):
    """More blocks were taken than are free. Nothing has changed."""


class InvalidRequestError(ValueError):
    """A request, or what was asked for it, cannot be right. Nothing has changed."""


class InvalidConfigError(ValueError):
    """Groups, sizes or budgets that do not fit together: names them and their values."""


class KVSharingError(InvalidConfigError, KeyError):
    """Layers share caches in a way that leads to none: names the layers, in the order in which they do."""

    def __str__(self) -> str:
        # KeyError would show the message as a string's repr.
        return str(self.args[0]) if self.args else ""


class OutOfCacheMemoryError(MemoryError):
    """There is not enough memory for the tensors of a cache. None of them is kept."""


class PlatformError(RuntimeError):
    """A platform plugin could not be chosen, loaded, or run."""
