"""A request, as far as the KV cache is concerned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvref.errors import InvalidRequestError
from kvref.hashing import BlockHasher, MultiModalItem

__all__ = ["Request"]


class Request:
    """What a request consists of, and how far it is. Whoever schedules it sets the counts of tokens.

    Args:
        prompt_token_ids: at least one.
        block_hasher: makes its hashes; without one it takes no part in prefix caching.
        adapter: name of what changes the model's weights for it.
        cache_salt: shares cached content only with requests of the same salt.
        multimodal_items: what stands in the prompt besides tokens.
        embeddings: bytes of the embedding at each position that has one in place of a token.

    Raises:
        InvalidRequestError: at construction, for no tokens, negative ones, or content outside of the prompt.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Iterable[int],
        block_hasher: BlockHasher | None = None,
        *,
        adapter: str | None = None,
        cache_salt: str | None = None,
        multimodal_items: Sequence[MultiModalItem] = (),
        embeddings: Mapping[int, bytes] | None = None,
    ) -> None:
        self.request_id = request_id
        self.all_token_ids: list[int] = []
        self.block_hasher = block_hasher
        self.block_hashes: list[bytes] = []
        self.adapter = adapter
        self.cache_salt = cache_salt
        self.multimodal_items = tuple(multimodal_items)
        self.embeddings = dict(embeddings or {})
        self.num_computed_tokens = 0
        """Tokens whose KV is there or scheduled to be; those found in the cache count once allocated."""
        self.num_in_flight_tokens = 0
        """Those of them that are not confirmed: still being computed, or drafts that may be rejected."""
        self.skip_reading_prefix_cache = False
        tokens = list(prompt_token_ids)
        if not tokens:
            raise InvalidRequestError(f"request {request_id!r} has no tokens")
        used = [item.offset + item.length - 1 for item in self.multimodal_items] + list(self.embeddings)
        if used and not (min(used) >= 0 and max(used) < len(tokens)):
            raise InvalidRequestError(
                f"request {request_id!r} has {len(tokens)} prompt tokens, but something in place of that "
                f"at {max(used) if min(used) >= 0 else min(used)}"
            )
        self.append_output_token_ids(tokens)
        self.num_prompt_tokens = len(tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens that are certain: prompt and output, without drafts."""
        return len(self.all_token_ids)

    def append_output_token_ids(self, token_ids: int | Iterable[int]) -> None:
        """Add tokens that are certain, and the hashes of the blocks that they fill."""
        tokens, hasher = self.all_token_ids, self.block_hasher
        if isinstance(token_ids, int) and token_ids >= 0:
            tokens.append(token_ids)
        else:
            new = [token_ids] if isinstance(token_ids, int) else list(token_ids)
            if new and min(new) < 0:
                raise InvalidRequestError(f"request {self.request_id!r}: {min(new)} is no token id")
            tokens += new
        if hasher is not None and len(tokens) >= (len(self.block_hashes) + 1) * hasher.hash_block_size:
            hasher.extend(self.block_hashes, self)
