"""Draws contents of requests and hashes them: similar ones in pairs, at two block sizes, in two processes.

A content is everything that the KV of a request depends on (see `kvref.target.Content`). The drawn contents
are like those that engines get: only the prompt has items and embeddings, and special tokens are their
placeholders. Items with the same id have the same shape, except for the subject `item shapes`.
"""

from __future__ import annotations

from typing import Any, cast

from hypothesis import strategies as st

from kvref.target import Content
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

KINDS = ("adapter", "salt", "items", "interleaved items", "item shapes", "embeddings")
"""The kinds of content that the capability `contents` may list. Every target takes tokens."""

HASH_BLOCK_SIZES = st.sampled_from([4, 8, 16])

TOKENS = st.sampled_from([0, 1, 2, 128000])
PLACEHOLDER, SEPARATOR = 9, 8
"""The token at the place of an embedding, and the token between embeddings."""

NAMES = st.sampled_from(["cat", "dog", "cow"])
SHAPES = ("x", "xx", "xxx", "xxxxxx", "x" * 11, "x-xx-x", "-xx-", "-----xx", "xx-----")
"""The placeholders of an item: x stands for an embedding, - for a separator."""
INTERLEAVED = ("aabbaabb", "aab", "aaaaaab", "ab" * 6, "aab" * 7)
"""The placeholders of two interleaved items a and b, for example of a video and its sound."""
ROWS = st.sampled_from([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
"""Draws an embedding."""

Piece = dict[str, Any]
"""A piece of a prompt: its `tokens`, and perhaps the `items` or the embeddings (`rows`) that replace them."""


def text_piece(draw: Draw) -> Piece:
    return {"tokens": draw(st.lists(TOKENS, min_size=1, max_size=6))}


def _item(name: str, shape: str, embedded: str) -> dict[str, Any]:
    mask = [mark == embedded for mark in shape]
    return {"id": name, "offset": 0, "length": len(shape), "is_embed": None if all(mask) else mask}


def item_piece(draw: Draw) -> Piece:
    """One item. The id contains the number of the shape, so items with the same id have the same shape."""
    shape = draw(st.sampled_from(SHAPES))
    tokens = [PLACEHOLDER if mark == "x" else SEPARATOR for mark in shape]
    return {"tokens": tokens, "items": [_item(f"{draw(NAMES)}.{SHAPES.index(shape)}", shape, "x")]}


def interleaved_piece(draw: Draw) -> Piece:
    """Two items whose embeddings alternate within the same placeholders."""
    shape = draw(st.sampled_from(INTERLEAVED))
    tokens = [PLACEHOLDER if mark == "a" else PLACEHOLDER + 1 for mark in shape]
    number = INTERLEAVED.index(shape)
    items = [_item(f"{draw(NAMES)}.{kind}{number}", shape, kind) for kind in "ab"]
    return {"tokens": tokens, "items": items}


def shape_piece(draw: Draw) -> Piece:
    """One item of any shape. Items with the same id may have different shapes."""
    length = draw(st.integers(1, 8))
    mask = draw(st.none() | st.lists(st.booleans(), min_size=length, max_size=length))
    item = {"id": draw(NAMES), "offset": 0, "length": length, "is_embed": mask}
    return {"tokens": [PLACEHOLDER] * length, "items": [item]}


def embeddings_piece(draw: Draw) -> Piece:
    rows = draw(st.lists(ROWS, min_size=1, max_size=6))
    return {"tokens": [PLACEHOLDER] * len(rows), "rows": rows}


PIECES = {
    "items": item_piece,
    "interleaved items": interleaved_piece,
    "item shapes": shape_piece,
    "embeddings": embeddings_piece,
}


def altered(draw: Draw, piece: Piece) -> Piece:
    """A copy of the piece in which one token, embedding or item is changed.

    By chance it may stay the same.
    """
    altered = {name: list(values) for name, values in piece.items()}
    name = next(name for name in ("items", "rows", "tokens") if name in piece)
    place = draw(st.integers(0, len(piece[name]) - 1))
    if name == "items":
        item = piece["items"][place]
        _, dot, shape = item["id"].partition(".")
        altered["items"][place] = {**item, "id": draw(NAMES) + dot + shape}
        if not dot:
            mask = item["is_embed"] or [True] * item["length"]
            altered["items"][place] = {**item, "is_embed": draw(st.permutations(mask))}
    else:
        altered[name][place] = draw(ROWS if name == "rows" else TOKENS)
    return altered


def pieces(draw: Draw, kind: str, count: int) -> list[Piece]:
    special = PIECES.get(kind, text_piece)
    return [draw(st.sampled_from([text_piece, special, special]))(draw) for _ in range(count)]


def assembled(prompt: list[Piece], generated: list[int], **more: Any) -> Content:
    """The content of a request with these pieces as its prompt and these output tokens."""
    tokens: list[int] = []
    items: list[dict[str, Any]] = []
    embeddings: dict[str, list[float]] = {}
    for piece in prompt:
        items += [{**item, "offset": len(tokens)} for item in piece.get("items", ())]
        for place, row in enumerate(piece.get("rows", ())):
            embeddings[str(len(tokens) + place)] = row
        tokens += piece["tokens"]
    given = {"generated": len(generated), "items": items, "embeddings": embeddings, **more}
    content = {"tokens": tokens + generated, **{name: value for name, value in given.items() if value}}
    return cast(Content, content)


def fields(draw: Draw, kind: str, description: Description) -> dict[str, Any]:
    """Draw an adapter for the kind `adapter`, an adapter and a salt for the kind `salt`, else nothing."""
    drawn = {"adapter": ("adapter",), "salt": ("salt", "adapter")}.get(kind, ())
    return {name: draw(st.none() | NAMES) for name in drawn if takes(description, name)}


def _only(**piece: list[Any]) -> Piece:
    return {"tokens": [PLACEHOLDER], **piece}


SINGLE: dict[str, list[Piece]] = {
    "embeddings": [_only(rows=[[0.0, 0.0]]), _only(rows=[[1.0, 0.0]])],
    "items": [_only(items=[_item(f"{name}.0", "x", "x")]) for name in ("cat", "dog")],
    "item shapes": [
        _only(items=[{"id": "cat", "offset": 0, "length": 1, "is_embed": mask}]) for mask in (None, [False])
    ],
}
"""For each kind of content: pieces that have one position, with an embedding or an item there."""


def single(draw: Draw, kind: str) -> Piece:
    tokens: list[Piece] = [{"tokens": [token]} for token in (0, 1)]
    return draw(st.sampled_from(tokens + SINGLE.get(kind, [])))


def filled(prompt: list[Piece], size: int) -> list[Piece]:
    """The pieces. If they have fewer than `size` tokens, a piece with the missing tokens follows."""
    missing = size - sum(len(piece["tokens"]) for piece in prompt)
    return [*prompt, {"tokens": [0] * missing}] if missing > 0 else prompt


def contents(draw: Draw, description: Description, size: int) -> Content:
    """Draw a content of any kind that the target takes, with at least `size` tokens."""
    kind = draw(st.sampled_from([kind for kind in ("tokens", *KINDS) if takes(description, kind)]))
    prompt = filled(pieces(draw, kind, draw(st.integers(1, 4))), size)
    generated = draw(st.lists(TOKENS, max_size=6))
    return assembled(prompt, generated, **fields(draw, kind, description))


def pair(draw: Draw, description: Description, kind: str, size: int) -> tuple[Content, Content]:
    """Draw two similar contents. They may be equal.

    They may differ in a piece, the order of two pieces, the last pieces, the adapter or the salt. Each has at
    least `size` tokens. The output tokens of the first content may be prompt tokens of the second.
    """
    first = pieces(draw, kind, draw(st.integers(1, 4)))
    place = draw(st.integers(0, len(first) - 1))
    match draw(st.sampled_from(["altered", "altered", "replaced", "replaced", "order", "end", "plain"])):
        case "altered":
            place = draw(st.sampled_from([n for n, piece in enumerate(first) if len(piece) > 1] or [place]))
            second = [*first[:place], altered(draw, first[place]), *first[place + 1 :]]
        case "replaced":
            # Both contents get a piece of the same length here, so the later pieces have equal positions.
            second = [*first[:place], single(draw, kind), *first[place:]]
            first = [*first[:place], single(draw, kind), *first[place:]]
        case "order":
            second = [*first[:place], *reversed(first[place : place + 2]), *first[place + 2 :]]
        case "end":
            second = [*first[: place + 1], *pieces(draw, kind, draw(st.integers(1, 3)))]
        case _:
            # The first content has tokens only.
            beginning = filled([text_piece(draw)], size)
            first, second = [*beginning, text_piece(draw)], [*beginning, *first]
    generated = draw(st.lists(TOKENS, max_size=8))
    moved = draw(st.booleans())
    return (
        assembled(filled(first, size), generated, **fields(draw, kind, description)),
        assembled(
            [*filled(second, size), {"tokens": generated if moved else []}],
            [] if moved else generated,
            **fields(draw, kind, description),
        ),
    )


def compare(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Hash two similar contents."""
    size = draw(HASH_BLOCK_SIZES)
    for content in pair(draw, description, subject, size):
        stage.perform("hashing.block_hashes", content=content, hash_block_size=size)


def sizes(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Hash a content, then ask for the content's hashes at a multiple of the hash block size."""
    size = draw(HASH_BLOCK_SIZES)
    multiple = draw(st.integers(1, 4))
    content = contents(draw, description, size * multiple)
    stage.perform("hashing.block_hashes", content=content, hash_block_size=size)
    stage.perform("hashing.keys", content=content, hash_block_size=size, block_size=size * multiple)


OTHER_PROCESS = "-R"
"""The flag of a new interpreter that imports the target again, with another seed for Python's `hash()`."""


def processes(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Hash the same content in two processes."""
    size = draw(HASH_BLOCK_SIZES)
    content = contents(draw, description, size)
    stage.perform("hashing.block_hashes", content=content, hash_block_size=size)
    stage.fresh(OTHER_PROCESS)
    stage.perform("hashing.block_hashes", content=content, hash_block_size=size)


def takes(description: Description, kind: str) -> bool:
    return kind == "tokens" or kind in description["capabilities"].get("contents", [])


def kinds(description: Description) -> Subjects:
    """Each kind of content, with None if it is drawn, else with the reason why it is not."""
    return {
        kind: None if takes(description, kind) else f"the target takes no {kind}"
        for kind in ("tokens", *KINDS)
    }


def one_subject(description: Description) -> Subjects:
    return {"contents": None}


WORKLOADS = [
    Workload("contents.pairs", ("hashing",), kinds, compare, weight=2),
    Workload("contents.sizes", ("hashing", "hashing.keys"), one_subject, sizes, weight=0.5),
    Workload(
        "contents.processes",
        ("hashing",),
        one_subject,
        processes,
        isolated=True,
        flags=(OTHER_PROCESS,),
        weight=0.2,
    ),
]
