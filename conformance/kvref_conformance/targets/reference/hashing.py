"""The part `hashing` of the reference: the block hashes of a request.

Stand-alone programs copy functions from this module, so that they need only kvref.
"""

from __future__ import annotations

from array import array

import kvref.hashing
from kvref.request import Request
from kvref.target import Content

CONTENTS = ["adapter", "salt", "items", "interleaved items", "item shapes", "embeddings"]


def request_of(content: Content, hash_block_size: int) -> Request:
    tokens, generated = content["tokens"], content.get("generated", 0)
    items = [
        kvref.hashing.MultiModalItem(
            item["id"],
            item["offset"],
            item["length"],
            None if item["is_embed"] is None else tuple(item["is_embed"]),
        )
        for item in content.get("items", ())
    ]
    request = Request(
        "request",
        tokens[: len(tokens) - generated],
        kvref.hashing.BlockHasher(hash_block_size),
        adapter=content.get("adapter"),
        cache_salt=content.get("salt"),
        multimodal_items=items,
        embeddings={
            int(position): array("d", values).tobytes()
            for position, values in content.get("embeddings", {}).items()
        },
    )
    for token in tokens[len(tokens) - generated :]:
        request.append_output_token_ids(token)
    return request


def block_hashes(content: Content, hash_block_size: int) -> list[str]:
    return [each.hex() for each in request_of(content, hash_block_size).block_hashes]


def keys(content: Content, hash_block_size: int, block_size: int) -> list[str]:
    chain = request_of(content, hash_block_size).block_hashes
    return [each.hex() for each in kvref.hashing.hashes_at(chain, hash_block_size, block_size)]
