"""Laws of block hashes: equal hashes mean equal content."""

from __future__ import annotations

from typing import Any

from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs

Hashed = tuple[dict[str, Any], int, str]
"""The content of a request, a number of tokens, and the hash of that many tokens at its beginning."""


def hashed(events: list[Event]) -> list[list[Hashed]]:
    """For each request that was hashed, its block hashes."""
    answered = [
        event for event in events if event["op"] == "hashing.block_hashes" and "value" in event["outcome"]
    ]
    return [
        [
            (event["args"]["content"], (place + 1) * event["args"]["hash_block_size"], each)
            for place, each in enumerate(event["outcome"]["value"])
        ]
        for event in answered
    ]


def sources(content: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The source of the KV at each position: a token, part of a multimodal item, or a prompt embedding."""
    found: list[tuple[Any, ...]] = [("token", token) for token in content["tokens"]]
    for item in content.get("items", []):
        mask = item["is_embed"] or [True] * item["length"]
        places = [item["offset"] + place for place, embedded in enumerate(mask) if embedded]
        for number, position in enumerate(places):
            found[position] = ("item", item["id"], number)
    for position, values in content.get("embeddings", {}).items():
        found[int(position)] = ("embedding", *values)
    return found


def difference(first: dict[str, Any], other: dict[str, Any], tokens: int) -> tuple[str, str] | None:
    """The first difference of two contents: in the adapter, the salt or the first `tokens` positions.

    Returns its facet and a description, or None if there is no difference.
    """
    for name in ("adapter", "salt"):
        values = first.get(name), other.get(name)
        if values[0] != values[1]:
            return name, f"{name} {values[0]!r} and {name} {values[1]!r}"
    pairs = zip(sources(first)[:tokens], sources(other)[:tokens], strict=False)
    for position, (one, two) in enumerate(pairs):
        if one != two:
            told = [f"{source[0]} {', '.join(map(repr, source[1:]))}" for source in (one, two)]
            return " or ".join(sorted({one[0], two[0]})), f"{told[0]} and {told[1]} at position {position}"
    return None


def injective(runs: Runs) -> int:
    """Equal hashes mean equal content up to the end of the hashed tokens."""
    entries = [entry for request in hashed(runs[0]) for entry in request]
    judged = 0
    for place, (content, tokens, one) in enumerate(entries):
        for other_content, other_tokens, two in entries[:place]:
            if tokens != other_tokens:
                differing: tuple[str, str] | None = (
                    "number of tokens",
                    f"{other_tokens} tokens and {tokens} tokens",
                )
            else:
                differing = difference(other_content, content, tokens)
            if differing is None:
                continue
            judged += 1
            if one == two:
                raise LawBroken(
                    f"different hashes for different content: {differing[1]}",
                    f"the same hash {one[:16]} for {other_tokens} and {tokens} tokens",
                    (differing[0],),
                )
    return judged


def written(content: dict[str, Any], tokens: int) -> dict[str, Any]:
    """The parts of a content that begin within its first `tokens` tokens, as they were given."""
    return {
        "tokens": content["tokens"][:tokens],
        "adapter": content.get("adapter"),
        "salt": content.get("salt"),
        "items": [item for item in content.get("items", []) if item["offset"] < tokens],
        "embeddings": {
            position: values
            for position, values in content.get("embeddings", {}).items()
            if int(position) < tokens
        },
    }


def shared(runs: Runs) -> int:
    """Requests with equal content up to the end of a block have equal hashes up to there."""
    requests = hashed(runs[0])
    judged = 0
    for place, request in enumerate(requests):
        for other in requests[:place]:
            for (content, tokens, one), (other_content, other_tokens, two) in zip(
                request, other, strict=False
            ):
                if tokens != other_tokens or written(content, tokens) != written(other_content, tokens):
                    continue
                judged += 1
                if one != two:
                    rest = [
                        name
                        for name in ("items", "embeddings", "generated", "tokens")
                        if content.get(name) != other_content.get(name)
                    ]
                    raise LawBroken(
                        f"the same hash for the same {tokens} tokens, whatever comes after them",
                        f"the hashes {two[:16]} and {one[:16]}, for requests that differ elsewhere, in "
                        + (", ".join(rest) or "nothing"),
                        tuple(rest[:1]) or ("same",),
                    )
    return judged


def granularity(runs: Runs) -> int:
    """The hash of a block is the chain hash at the end of the block.

    The chain hash at a position is the hash of the hash block that ends there. It covers all tokens up to
    there.
    """
    chains: dict[int, list[str]] = {}
    judged = 0
    for event in runs[0]:
        if "value" not in event["outcome"]:
            continue
        size, value = event["args"]["hash_block_size"], event["outcome"]["value"]
        if event["op"] == "hashing.block_hashes":
            chains[size] = value
        elif event["op"] == "hashing.keys" and size in chains:
            block_size = event["args"]["block_size"]
            for place, key in enumerate(value):
                end = (place + 1) * block_size
                at_end = chains[size][: end // size][end // size - 1 :]
                judged += 1
                if [key] != at_end:
                    raise LawBroken(
                        f"the block hash of block {place} of {block_size} tokens is the chain hash at {end} "
                        f"tokens, {at_end[0][:16] if at_end else 'which does not exist'}",
                        key[:16],
                    )
    return judged


def stable_across_processes(runs: Runs) -> int:
    """Two processes compute the same hashes for the same content."""
    if len(runs) < 2:
        return 0
    judged = 0
    for first, other in zip(hashed(runs[0]), hashed(runs[1]), strict=False):
        for (content, tokens, one), (same, _, two) in zip(first, other, strict=False):
            if content != same:
                continue
            judged += 1
            if one != two:
                raise LawBroken(
                    f"the same hash for the same {tokens} tokens in every process",
                    f"{one[:16]} in one process, {two[:16]} in another",
                )
    return judged


def total(runs: Runs) -> int:
    """Every content of the kinds that the target declares can be hashed."""
    judged = 0
    for event in runs[0]:
        if event["op"] == "hashing.block_hashes" and "died" not in event["outcome"]:
            judged += 1
            if error := event["outcome"].get("error"):
                content = event["args"]["content"]
                given = [name for name in ("adapter", "salt", "items", "embeddings") if content.get(name)]
                raise LawBroken(
                    f"hashes for {len(content['tokens'])} tokens with {', '.join(given) or 'nothing else'}",
                    f"{error['type']}: {error['message']}",
                    (error["type"],),
                )
    return judged


LAWS = [
    Law(
        id="hash.total",
        level=Level.SAFETY,
        statement="Every kind of content that the target declares can be hashed.",
        why="An exception in hashing ends a running engine.",
        sources=("vLLM's design of prefix caching",),
        workload="contents.pairs",
        check=total,
    ),
    Law(
        id="hash.injective",
        level=Level.SAFETY,
        statement=(
            "Equal block hashes mean equal content up to the end of the block: the same tokens, adapter, "
            "salt, multimodal items and embeddings, at the same positions."
        ),
        why=(
            "Otherwise a request reads the KV of other content, and answers about a prompt it was never "
            "shown."
        ),
        sources=("vLLM's design of prefix caching",),
        workload="contents.pairs",
        check=injective,
    ),
    Law(
        id="hash.shared",
        level=Level.ROBUSTNESS,
        statement="Equal content up to the end of a block gives equal block hashes, whatever comes after it.",
        why="Otherwise look-ups miss cached blocks, and their tokens are computed again.",
        sources=("vLLM's design of prefix caching",),
        workload="contents.pairs",
        check=shared,
    ),
    Law(
        id="hash.granularity",
        level=Level.SAFETY,
        statement=(
            "The hash of block i of block size B is the chain hash at (i+1)B tokens: the hash of the hash "
            "block that ends there, for every hash block size that divides B."
        ),
        why=(
            "Otherwise groups with different block sizes find blocks that end elsewhere or hold other "
            "content."
        ),
        sources=("vLLM's design of prefix caching",),
        workload="contents.sizes",
        check=granularity,
    ),
    Law(
        id="hash.stable-across-processes",
        level=Level.SAFETY,
        statement=(
            "Two processes with the same environment, including `PYTHONHASHSEED`, compute the same hashes "
            "for the same content."
        ),
        why="Otherwise engines that share a cache, or routers that predict hits, never find a cached block.",
        sources=("vLLM's design of prefix caching",),
        workload="contents.processes",
        check=stable_across_processes,
    ),
]
