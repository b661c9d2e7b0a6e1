"""The part `canonical` of the reference: the canonical view of allocated caches.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from types import SimpleNamespace

from kvref.canonical import CanonicalKVCaches, copy_blocks, register_kv_caches
from kvref.target import Canonical
from kvref_conformance.targets.memory import canonical_facts, read_bytes, write_bytes
from kvref_conformance.targets.reference.tensors import CURRENT

REGISTERED: SimpleNamespace = SimpleNamespace(caches=None)


def register() -> Canonical:
    caches = CURRENT.caches
    REGISTERED.caches = register_kv_caches(caches)
    return canonical_facts(canonical_caches(), caches.buffers)


def canonical_caches() -> CanonicalKVCaches:
    made: CanonicalKVCaches = REGISTERED.caches
    return made


def write(tensor: int, row: int, seed: int) -> str:
    return write_bytes([canonical_caches().tensors[tensor].tensor[row]], seed)


def read(tensor: int, row: int) -> str:
    return read_bytes([canonical_caches().tensors[tensor].tensor[row]])


def copy(group: int, source: int, destination: int) -> None:
    copy_blocks(canonical_caches(), canonical_caches(), group, [(source, destination)])
