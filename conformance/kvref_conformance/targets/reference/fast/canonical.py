"""The part `canonical` of `reference:fast`: the canonical view of allocated caches.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from kvref.fast.canonical import copy_blocks, register_kv_caches
from kvref.target import Canonical
from kvref_conformance.targets.memory import canonical_facts
from kvref_conformance.targets.reference.canonical import REGISTERED, canonical_caches, read, write
from kvref_conformance.targets.reference.tensors import CURRENT

__all__ = ["copy", "read", "register", "write"]


def register() -> Canonical:
    REGISTERED.caches = register_kv_caches(CURRENT.caches)
    return canonical_facts(canonical_caches(), CURRENT.caches.buffers)


def copy(group: int, source: int, destination: int) -> None:
    copy_blocks(canonical_caches(), canonical_caches(), group, [(source, destination)])
