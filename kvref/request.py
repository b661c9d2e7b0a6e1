"""A request as the KV cache sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvref.errors import InvalidRequestError
from kvref.hashing import BlockHasher, MultiModalItem

__all__ = ["Request"]


class Request:
    """The content of a request, and how much of it is computed.

    The scheduler sets `num_computed_tokens` and `num_in_flight_tokens`.

    Args:
        prompt_token_ids: at least one token.
        block_hasher: computes the block hashes. Without it the request takes no part in prefix caching.
        adapter: name of the adapter (LoRA) that the request runs with.
        cache_salt: the request shares cached blocks only with requests that have the same salt.
        multimodal_items: images and other items whose embeddings replace tokens of the prompt.
        embeddings: the bytes of each embedding that replaces a token of the prompt, by the position of that
            token.

    Raises:
        InvalidRequestError: at construction, if there are no tokens, a token id is negative, or an item or an
            embedding lies outside of the prompt.
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
        """Tokens that are computed or scheduled. Once slots are allocated, this includes the prefix hit."""
        self.num_in_flight_tokens = 0
        """How many of the `num_computed_tokens` are in flight. Draft tokens among these may still be
        rejected."""
        self.skip_reading_prefix_cache = False
        tokens = list(prompt_token_ids)
        if not tokens:
            raise InvalidRequestError(f"request {request_id!r} has no tokens")
        used = [item.offset + item.length - 1 for item in self.multimodal_items] + list(self.embeddings)
        if used and not (min(used) >= 0 and max(used) < len(tokens)):
            raise InvalidRequestError(
                f"request {request_id!r} has {len(tokens)} prompt tokens, but an item or embedding at "
                f"position {max(used) if min(used) >= 0 else min(used)}"
            )
        self.append_output_token_ids(tokens)
        self.num_prompt_tokens = len(tokens)

    @property
    def num_tokens(self) -> int:
        """The number of prompt and output tokens. Draft tokens do not count."""
        return len(self.all_token_ids)

    def append_output_token_ids(self, token_ids: int | Iterable[int]) -> None:
        """Append output tokens, and hash the blocks that become full. Do not append draft tokens.

        Raises:
            InvalidRequestError: a token id is negative.
        """
        tokens, hasher = self.all_token_ids, self.block_hasher
        if isinstance(token_ids, int) and token_ids >= 0:
            tokens.append(token_ids)
        else:
            new = [token_ids] if isinstance(token_ids, int) else list(token_ids)
            if new and min(new) < 0:
                raise InvalidRequestError(
                    f"request {self.request_id!r}: {min(new)} is no token id: it must be at least 0"
                )
            tokens += new
        if hasher is not None and len(tokens) >= (len(self.block_hashes) + 1) * hasher.hash_block_size:
            hasher.extend(self.block_hashes, self)
