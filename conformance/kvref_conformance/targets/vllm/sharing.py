"""The part `sharing` of vLLM: layers that use the cache of another layer.

Stand-alone programs copy functions from this module, so that they need only vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from vllm.model_executor.layers.attention.attention import validate_kv_sharing_target
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.utils import add_kv_sharing_layers_to_kv_cache_groups

from kvref.target import Joined, Pair


def join(groups: Sequence[Sequence[str]], sharing: Sequence[Pair], times: int) -> Joined:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float16)
    made = [KVCacheGroupSpec(list(names), spec) for names in groups]
    targets = {pair[0]: pair[1] for pair in sharing}
    check_targets([name for names in groups for name in names], targets)
    # In older releases, the runner that joins has no draft model that joins again.
    joins_again = hasattr(attn_utils, "add_kv_sharing_layers_to_kv_cache_groups")
    for _ in range(times if joins_again else 1):
        add_kv_sharing_layers_to_kv_cache_groups(targets, made)
    return {"groups": [list(group.layer_names) for group in made]}


def check_targets(owners: Sequence[str], targets: dict[str, str]) -> None:
    """Check each target while the layers of the model are built one after the other, as vLLM's layers do."""
    layer = SimpleNamespace(attn_type="decoder")
    built = dict.fromkeys(owners, layer)
    for name, target in targets.items():
        built[name] = layer
        validate_kv_sharing_target(name, target, built)
