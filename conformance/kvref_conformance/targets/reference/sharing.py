"""The part `sharing` of the reference: layers that use the cache of another layer.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvref.planning import KVCacheGroupSpec
from kvref.sharing import add_kv_sharing_layers_to_kv_cache_groups
from kvref.specs import FullAttentionSpec
from kvref.target import Joined, Pair


def join(groups: Sequence[Sequence[str]], sharing: Sequence[Pair], times: int) -> Joined:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float16)
    made = [KVCacheGroupSpec(names, spec) for names in groups]
    for _ in range(times):
        made = add_kv_sharing_layers_to_kv_cache_groups(dict(sharing), made)
    return {"groups": [list(group.layer_names) for group in made]}
