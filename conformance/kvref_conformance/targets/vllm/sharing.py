"""The part `sharing` of vLLM: layers that use the cache of another layer.

Stand-alone programs copy functions from this module, so that they need only vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec
from vllm.v1.worker.utils import add_kv_sharing_layers_to_kv_cache_groups

from kvref.target import Joined, Pair


def join(groups: Sequence[Sequence[str]], sharing: Sequence[Pair], times: int) -> Joined:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float16)
    made = [KVCacheGroupSpec(list(names), spec) for names in groups]
    targets = {pair[0]: pair[1] for pair in sharing}
    for _ in range(times):
        add_kv_sharing_layers_to_kv_cache_groups(targets, made)
    return {"groups": [list(group.layer_names) for group in made]}
