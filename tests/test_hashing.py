from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from kvref.errors import InvalidRequestError
from kvref.hashing import BlockHasher, MultiModalItem, hashes_at
from kvref.request import Request

HASHER = BlockHasher(4)


def hashes(tokens: Any = range(8), hasher: BlockHasher = HASHER, **extra: Any) -> list[bytes]:
    return Request("r", tokens, hasher, **extra).block_hashes


def test_one_hash_for_each_full_block() -> None:
    assert [len(hashes(range(n))) for n in (3, 4, 7, 8)] == [0, 1, 1, 2]
    assert hashes(range(12))[:2] == hashes(range(8))


def test_appended_tokens_hash_as_if_they_had_been_there() -> None:
    request = Request("r", range(3), HASHER)
    for token in range(3, 8):
        request.append_output_token_ids(token)
    request.append_output_token_ids([8, 9, 10, 11])
    assert request.block_hashes == hashes(range(12))


def test_negative_tokens_have_no_hash() -> None:
    """`Request` already refuses negative tokens. This is for other objects that have tokens."""
    content = SimpleNamespace(all_token_ids=[1, 2, -3, 4], multimodal_items=(), embeddings=())
    done: list[bytes] = []
    with pytest.raises(InvalidRequestError, match="-3 is no token id"):
        HASHER.extend(done, content)  # type: ignore[arg-type]
    assert done == []


def test_what_fills_no_block_has_no_hash() -> None:
    for done, tokens in (([], [1]), (hashes(range(4))[:1], [0, 1, 2])):
        content = SimpleNamespace(all_token_ids=tokens, multimodal_items=(), embeddings=())
        before = list(done)
        BlockHasher(2).extend(done, content)  # type: ignore[arg-type]
        assert done == before


ITEM = MultiModalItem("cat", 1, 2)
DIFFERENT: dict[str, Mapping[str, Any]] = {
    "plain": {},
    "token": {"tokens": [0, 1, 2, 4, 4, 5, 6, 7]},
    "order": {"tokens": [1, 0, 2, 3, 4, 5, 6, 7]},
    "adapter": {"adapter": "a"},
    "salt": {"cache_salt": "a"},
    "adapter and salt": {"adapter": "a", "cache_salt": "a"},
    "adapter like both": {"adapter": "aa"},
    "empty adapter": {"adapter": ""},
    "empty salt": {"cache_salt": ""},
    "item": {"multimodal_items": [ITEM]},
    "other item": {"multimodal_items": [MultiModalItem("dog", 1, 2)]},
    "item moved": {"multimodal_items": [MultiModalItem("cat", 2, 2)]},
    "item longer": {"multimodal_items": [MultiModalItem("cat", 1, 3)]},
    "item masked": {"multimodal_items": [MultiModalItem("cat", 1, 2, (True, False))]},
    "item masked otherwise": {"multimodal_items": [MultiModalItem("cat", 1, 2, (False, True))]},
    "two items": {"multimodal_items": [MultiModalItem("cat", 1, 1), MultiModalItem("cat", 2, 1)]},
    "cat, dog": {"multimodal_items": [MultiModalItem("cat", 1, 1), MultiModalItem("dog", 2, 1)]},
    "dog, cat": {"multimodal_items": [MultiModalItem("dog", 1, 1), MultiModalItem("cat", 2, 1)]},
    "embedding": {"embeddings": {1: b"x"}},
    "embedding elsewhere": {"embeddings": {2: b"x"}},
    "other embedding": {"embeddings": {1: b"y"}},
    "two embeddings": {"embeddings": {1: b"x", 2: b"x"}},
    "longer embedding": {"embeddings": {1: b"x" * 9}},
    "seed": {"hasher": BlockHasher(4, seed=b"other")},
    "function": {"hasher": BlockHasher(4, "blake2b")},
    "own function": {"hasher": BlockHasher(4, lambda data: data)},
}


def test_different_content_never_hashes_alike() -> None:
    first = {name: hashes(**arguments)[0] for name, arguments in DIFFERENT.items()}
    last = {name: hashes(**arguments)[-1] for name, arguments in DIFFERENT.items()}
    assert len(set(first.values())) == len(set(last.values())) == len(DIFFERENT)


def test_an_item_counts_where_it_stands() -> None:
    later = [MultiModalItem("cat", 5, 2)]
    assert hashes(multimodal_items=later)[0] == hashes()[0]
    assert hashes(multimodal_items=later)[1] != hashes()[1]
    assert hashes(embeddings={5: b"x"})[0] == hashes()[0]
    split = MultiModalItem("cat", 2, 4)
    shifted = MultiModalItem("cat", 2, 4, (False, True, True, True))
    assert hashes(multimodal_items=[split])[1] != hashes(multimodal_items=[shifted])[1]


def test_equal_content_hashes_alike() -> None:
    items = [MultiModalItem("cat", 1, 2), MultiModalItem("dog", 3, 2)]
    plain = hashes(multimodal_items=items)
    assert plain == hashes(multimodal_items=items[::-1])
    assert plain == hashes(multimodal_items=[MultiModalItem("cat", 1, 2, (True, True)), items[1]])
    assert plain == hashes([0, 9, 9, 9, 9, 5, 6, 7], multimodal_items=items)
    assert hashes(embeddings={1: b"x"}) == hashes([0, 9, 2, 3, 4, 5, 6, 7], embeddings={1: b"x"})


@given(
    one=st.lists(st.integers(0, 2), min_size=4, max_size=12),
    two=st.lists(st.integers(0, 2), min_size=4, max_size=12),
)
def test_hashes_agree_exactly_on_the_common_prefix(one: list[int], two: list[int]) -> None:
    for end in range(1, min(len(one), len(two)) // 4 + 1):
        alike = one[: 4 * end] == two[: 4 * end]
        assert (hashes(one)[end - 1] == hashes(two)[end - 1]) == alike


@given(tokens=st.integers(0, 50), step=st.integers(1, 4))
def test_a_block_of_any_multiple_has_the_hash_at_its_end(tokens: int, step: int) -> None:
    chain = [bytes([place]) for place in range(tokens)]
    view = [chain[(place + 1) * step - 1] for place in range(tokens // step)]
    assert list(hashes_at(chain, 4, 4 * step)) == view


def test_hashes_do_not_depend_on_the_process() -> None:
    code = (
        "from kvref.hashing import *; from kvref.request import Request; r = Request('q', range(8), "
        "BlockHasher(4), adapter='a', cache_salt='b', multimodal_items=[MultiModalItem('cat', 1, 2)], "
        "embeddings={5: b'x'}); print(r.block_hashes[-1].hex())"
    )
    command = [sys.executable, "-c", code]
    here = hashes(adapter="a", cache_salt="b", multimodal_items=[ITEM], embeddings={5: b"x"})[-1]
    for seed in ("1", "2"):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        )
        assert done.stdout.split() == [here.hex()]


def test_the_documented_encoding() -> None:
    """The encoding must never change: caches of different releases exchange hashes."""
    assert hashes(range(4), BlockHasher(4, lambda data: data))[0].hex() == (
        "70" + (14).to_bytes(8, "little").hex() + "73" + (5).to_bytes(8, "little").hex() + b"kvref".hex()
        + "74" + (32).to_bytes(8, "little").hex() + "".join(n.to_bytes(8, "little").hex() for n in range(4))
    )  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda: BlockHasher(0),
        lambda: BlockHasher(4, "md4"),
        lambda: hashes_at([], 4, 6),
        lambda: hashes_at([], 4, 2),
        lambda: Request("r", []),
        lambda: Request("r", [1, -1]),
        lambda: Request("r", [1, 2**63], BlockHasher(1)),
        lambda: Request("r", [1], embeddings={1: b"x"}),
        lambda: Request("r", [1], embeddings={-1: b"x"}),
        lambda: Request("r", [1], multimodal_items=[MultiModalItem("cat", 0, 2)]),
        lambda: MultiModalItem("cat", -1, 2),
        lambda: MultiModalItem("cat", 0, 0),
        lambda: MultiModalItem("cat", 0, 2, (True,)),
    ],
)
def test_impossible_content_is_refused(make: Any) -> None:
    with pytest.raises(InvalidRequestError):
        make()


def test_the_same_done_right_is_accepted() -> None:
    request = Request("r", [1, 2**63 - 1], BlockHasher(1), embeddings={1: b"x"})
    assert (request.num_tokens, request.num_prompt_tokens, len(request.block_hashes)) == (2, 2, 2)
    assert Request("r", [1], multimodal_items=[MultiModalItem("cat", 0, 1)]).block_hashes == []
