"""The errors that kvref raises.

Each derives from the built-in exception that a caller of the same vLLM function would catch. kvref uses no
`assert` for its checks, because `python -O` removes them.
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
    """A field of a spec or of the memory limits is impossible. The message names class, field and value."""


class SpecMergeError(ValueError):
    """Specs cannot be merged, because they describe different caches."""


class RegistrationError(ValueError):
    """A spec class cannot be registered, overridden or substituted like this."""


class ConflictingRegistrationError(RegistrationError):
    """The class is registered already, with another manager or uniform base. That registration stays."""


class UnregisteredSpecError(RegistrationError, LookupError):
    """Neither the spec class nor an ancestor of it is registered."""


class SpecKindError(TypeError):
    """A manager got a spec of a kind that it does not manage."""


class BlockError(ValueError):
    """Blocks cannot be allocated, freed or looked up like this. Nothing has changed."""


class PoolExhaustedError(BlockError):
    """More blocks were requested than are free. Nothing has changed."""


class InvalidRequestError(ValueError):
    """A request, or a call for it, is impossible. Nothing has changed."""


class InvalidConfigError(ValueError):
    """Groups, sizes or budgets do not fit together. The message names them and their values."""


class KVSharingError(InvalidConfigError, KeyError):
    """A layer cannot use the cache that it names, for example because there is none. Names the layers."""

    def __str__(self) -> str:
        # KeyError would show the repr of the message.
        return str(self.args[0]) if self.args else ""


class OutOfCacheMemoryError(MemoryError):
    """There is too little memory for the tensors of a cache. None of them stays allocated."""


class PlatformError(RuntimeError):
    """A platform plugin could not be chosen or loaded, or its hook failed."""
