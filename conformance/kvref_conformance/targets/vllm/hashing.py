"""The part `hashing` of vLLM: the block hashes of a request.

Stand-alone programs copy functions from this module, so that they need only vLLM.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request

from kvref.target import Content

# "item shapes" is left out: in vLLM the same item always has the same shape, because its hash covers whatever
# decides the shape. Not every release takes embeddings beside tokens.
CONTENTS = ["adapter", "salt", "items", "interleaved items"]
if "prompt_is_token_ids" in inspect.signature(Request).parameters:
    CONTENTS.append("embeddings")


def text(value: str | None) -> Any:
    """Return a new string with the same text, because an engine also gets new strings from its front end."""
    return None if value is None else value.encode().decode()


def features_of(content: Content) -> list[Any]:
    return [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=text(item["id"]),
            mm_position=PlaceholderRange(
                offset=item["offset"],
                length=item["length"],
                is_embed=None if item["is_embed"] is None else torch.tensor(item["is_embed"]),
            ),
        )
        for item in content.get("items", ())
    ]


def embeddings_of(content: Content, prompt: list[int]) -> dict[str, Any]:
    """The prompt as arguments for the constructor of a request: tokens, embeddings, or both.

    If there are both, a position with a token has a row of zeros in the embeddings.
    """
    embeddings = content.get("embeddings", {})
    if not embeddings:
        return {"prompt_token_ids": prompt}
    width = len(next(iter(embeddings.values())))
    rows = [embeddings.get(str(position), [0.0] * width) for position in range(len(prompt))]
    are_tokens = [str(position) not in embeddings for position in range(len(prompt))]
    if not any(are_tokens):
        return {"prompt_token_ids": None, "prompt_embeds": torch.tensor(rows)}
    return {
        "prompt_token_ids": prompt,
        "prompt_embeds": torch.tensor(rows),
        "prompt_is_token_ids": are_tokens,
    }


def adapter_named(name: str | None) -> Any:
    if not name:
        return None
    return LoRARequest(
        lora_name=text(name),
        lora_int_id=int.from_bytes(name.encode(), "big") + 1,
        lora_path=f"/adapters/{name}",
    )


def request_of(content: Content, hash_block_size: int) -> Any:
    tokens, generated = content["tokens"], content.get("generated", 0)
    kv_cache_utils.init_none_hash(sha256)
    request = Request(
        request_id="request",
        sampling_params=SamplingParams(max_tokens=16),
        pooling_params=None,
        mm_features=features_of(content),
        lora_request=adapter_named(content.get("adapter")),
        cache_salt=text(content.get("salt")),
        block_hasher=kv_cache_utils.get_request_block_hasher(hash_block_size, sha256),
        **embeddings_of(content, tokens[: len(tokens) - generated]),
    )
    for token in tokens[len(tokens) - generated :]:
        request.append_output_token_ids(token)
    return request


def block_hashes(content: Content, hash_block_size: int) -> list[str]:
    return [each.hex() for each in request_of(content, hash_block_size).block_hashes]


def keys(content: Content, hash_block_size: int, block_size: int) -> list[str]:
    chain = request_of(content, hash_block_size).block_hashes
    if block_size == hash_block_size:
        return [each.hex() for each in chain]
    view = kv_cache_utils.BlockHashListWithBlockSize(chain, hash_block_size, block_size)
    return [view[place].hex() for place in range(len(view))]
