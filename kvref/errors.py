"""The errors that kvref raises.

Each class derives from the built-in exception that a caller of the same vLLM function would catch. kvref
makes no checks with `assert`, because `python -O` removes `assert` statements.
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
    """A field of a spec or of `MemoryLimits` is invalid. The message names class, field and value."""


class SpecMergeError(ValueError):
    """Specs cannot be merged, because they describe different caches."""


class RegistrationError(ValueError):
    """The registry refuses to register, override or substitute a spec class with these arguments."""


class ConflictingRegistrationError(RegistrationError):
    """The spec class is already registered with another manager or uniform base. That entry stays."""


class UnregisteredSpecError(RegistrationError, LookupError):
    """A spec class is not registered. For a look-up, a registered ancestor is enough."""


class SpecKindError(TypeError):
    """A manager got a spec of a kind that it does not manage."""


class BlockError(ValueError):
    """A call names blocks or numbers that are not valid for the pool. Nothing has changed."""


class PoolExhaustedError(BlockError):
    """A call needs more blocks than are free. Nothing has changed."""


class InvalidRequestError(ValueError):
    """A request has invalid content, or a call does not fit the request. Nothing has changed."""


class InvalidConfigError(ValueError):
    """Groups, sizes or amounts of memory do not fit together. The message names them and their values."""


class KVSharingError(InvalidConfigError, KeyError):
    """A layer cannot share the cache of the layer that it names. The message names the layers."""

    def __str__(self) -> str:
        # KeyError.__str__ would return the repr of the message.
        return str(self.args[0]) if self.args else ""


class OutOfCacheMemoryError(MemoryError):
    """There is too little memory for the tensors of a cache. None of the tensors stays allocated."""


class PlatformError(RuntimeError):
    """A platform plugin cannot be chosen or loaded, or the hook of a platform failed."""
