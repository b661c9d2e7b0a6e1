"""Full attention with sinks."""

from __future__ import annotations

from typing import Any

from kvref.errors import InvalidSpecError
from kvref.managers.full import FullAttentionManager
from kvref.pool import BlockPool
from kvref.specs import SinkFullAttentionSpec

__all__ = ["SinkFullAttentionManager"]


class SinkFullAttentionManager(FullAttentionManager):
    """Full attention with sinks: additional tokens that all requests attend to.

    At construction the manager reserves blocks for the sinks in the pool, and lists them in `sink_blocks`. No
    request's block table contains these blocks.

    Raises:
        InvalidSpecError: at construction, if the sinks do not fill whole blocks. A request's own tokens must
            start at a block boundary.
        PoolExhaustedError: at construction, if the pool has too few free blocks for the sinks.
    """

    spec_class = SinkFullAttentionSpec

    def __init__(self, kv_cache_spec: SinkFullAttentionSpec, *, block_pool: BlockPool, **engine: Any) -> None:
        super().__init__(kv_cache_spec, block_pool=block_pool, **engine)
        if kv_cache_spec.sink_len % self.block_size:
            raise InvalidSpecError(
                f"{type(kv_cache_spec).__name__}.sink_len {kv_cache_spec.sink_len} is no multiple of "
                f"block_size {self.block_size}: choose a block size that divides it"
            )
        self.num_sink_blocks = kv_cache_spec.sink_len // self.block_size
        self.sink_blocks = block_pool.reserve_blocks(self.num_sink_blocks)
