"""The part `canonical` of vLLM: the canonical view of allocated caches.

Stand-alone programs copy functions from this module, so that they need only vLLM.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from vllm.distributed.kv_transfer.kv_connector.v1.offloading import worker

from kvref.target import Canonical
from kvref_conformance.targets.memory import canonical_facts, read_bytes, write_bytes
from kvref_conformance.targets.vllm.tensors import CURRENT

REGISTERED: SimpleNamespace = SimpleNamespace(caches=None)


def register() -> Canonical:
    """Have the worker of vLLM's offloading connector make the canonical view, then keep and describe it.

    The worker would pass the view to the part that copies blocks. `keep` takes the place of that part.
    """
    with without_mappings():
        connector_of(CURRENT.engine, CURRENT.config).register_kv_caches(CURRENT.caches)
    return canonical_facts(REGISTERED.caches, CURRENT.buffers)


def without_mappings() -> Any:
    """Make a patch that switches off how vLLM maps pages across GPUs, because that needs a real model."""
    return patch.object(worker, "derive_canonical_mappings", lambda *arguments: {}, create=True)


def connector_of(engine: Any, config: Any) -> Any:
    arguments = {
        "spec": SimpleNamespace(
            # Releases differ in the name of the copier's factory, and in where the worker finds the rest.
            get_worker=keep,
            get_handlers=keep,
            vllm_config=engine,
            kv_cache_config=config,
            replicated_layout=False,
            config=SimpleNamespace(canonical_layout=False, parallel=SimpleNamespace(rank=0)),
        ),
        "vllm_config": engine,
        "kv_cache_config": config,
    }
    takes = inspect.signature(worker.OffloadingConnectorWorker).parameters
    return worker.OffloadingConnectorWorker(**{k: v for k, v in arguments.items() if k in takes})


def keep(caches: Any) -> list[Any]:
    REGISTERED.caches = caches
    return []


def write(tensor: int, row: int, seed: int) -> str:
    return write_bytes([REGISTERED.caches.tensors[tensor].tensor[row]], seed)


def read(tensor: int, row: int) -> str:
    return read_bytes([REGISTERED.caches.tensors[tensor].tensor[row]])


def copy(group: int, source: int, destination: int) -> None:
    for ref in REGISTERED.caches.group_data_refs[group]:
        rows, size = REGISTERED.caches.tensors[ref.tensor_idx].tensor, ref.page_size_bytes
        rows[destination, :size].copy_(rows[source, :size])
