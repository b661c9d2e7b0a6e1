"""A finding of kvref in vLLM 0.32.0, by hand (vLLM issue 57580): a prefix hit on tokens that nobody computed.

Run it with an interpreter that has vLLM 0.32.0.
"""

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

# A cache of three blocks of two tokens, and the null block.
BLOCK_SIZE = 2
spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float16)
cache = KVCacheManager(
    KVCacheConfig(num_blocks=4, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]),
    max_model_len=16,
    scheduler_block_size=BLOCK_SIZE,
    hash_block_size=BLOCK_SIZE,
    max_in_flight_tokens=16,
    enable_caching=True,
)
init_none_hash(sha256)
block_hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
a = Request("a", [0, 0, 0, 0], SamplingParams(max_tokens=2), None, block_hasher=block_hasher)
b = Request("b", [1, 1, 1, 1], SamplingParams(max_tokens=2), None, block_hasher=block_hasher)

# Step 1: both requests compute their first token.
cache.allocate_slots(a, 1)
cache.allocate_slots(b, 1)
a.num_computed_tokens = b.num_computed_tokens = 1

# Step 2: `a` gets slots for two more tokens. There is no room
# for `b`, so the scheduler preempts `a`.
cache.allocate_slots(a, 2)
cache.allocate_slots(b, 3)  # None
cache.free(a)
a.num_computed_tokens = 0

# `a` resumes. Only its first token was ever computed.
blocks, num_tokens, *_ = cache.get_computed_blocks(a)
print(f"prefix hit of {num_tokens} tokens, blocks {blocks.get_block_ids()}")
