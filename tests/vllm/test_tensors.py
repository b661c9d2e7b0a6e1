"""How stock vLLM lays out the memory of caches. The expected addresses were worked out by hand.

These tests run by name. KVREF_VLLM_PYTHON names the interpreter of an environment with vLLM 0.32.0. Release
0.22.1 must be prepared (`tox -e vllm`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from running import PYTHON

from kvref_conformance.processes.launch import Launch, running_hosts
from kvref_conformance.processes.session import Session
from kvref_conformance.running.loading import prepare

Ask = Callable[..., Any]
"""Performs an operation and returns its value. Raises `Refused`."""

PAGE = 64
"""The bytes of 4 tokens with 2 heads. Each head has 2 values of 2 bytes for K, and 2 for V."""

BLOCKS = 3


def full(**fields: Any) -> dict[str, Any]:
    layer = {"block_size": 4, "num_kv_heads": 2, "head_size": 2, "dtype": "torch.float16"}
    return {"class": "FullAttentionSpec", "fields": {**layer, **fields}}


STATES = {
    "class": "MambaSpec",
    "fields": {"block_size": 4, "shapes": [[2, 3], [4]], "dtypes": ["torch.float32", "torch.float16"]},
}


class Refused(Exception):
    """The operation raised an exception."""


@contextmanager
def performing(worker: Launch) -> Iterator[Ask]:
    with running_hosts(worker, [""]) as hosts, Session(hosts[""].address, worker.timeout) as session:

        def ask(operation: str, **arguments: Any) -> Any:
            outcome = session.perform(operation, arguments)
            if "error" in outcome:
                raise Refused("{type}: {message}".format_map(outcome["error"]))
            return outcome["value"]

        yield ask


@pytest.fixture(scope="module")
def vllm() -> Iterator[Ask]:
    with performing(Launch("vllm", PYTHON)) as ask:
        yield ask


def allocate(ask: Ask, *specs: dict[str, Any], layout: str, **arguments: Any) -> Any:
    layers = {f"layer.{place}": spec for place, spec in enumerate(specs)}
    usual = {"buffers": "one", "kernel_block_size": None, "sharing": [], "device": "cpu"}
    return ask("tensors.allocate", layers=layers, num_blocks=BLOCKS, layout=layout, **{**usual, **arguments})


def test_the_layouts_that_are_declared_are_all_there_are() -> None:
    worker = Launch("vllm", PYTHON)
    with running_hosts(worker, [""]) as hosts:
        capabilities = hosts[""].ask({"kind": "describe"})["description"]["capabilities"]
    assert sorted(capabilities["layouts"]) == ["BHLNC", "BLHNC", "BLNHC", "LBHNC", "LBNHC", "LHBNC"]
    assert capabilities["buffers"] == ["one"]


@pytest.mark.parametrize(
    ("layout", "offset", "strides"),
    [
        ("LBHNC", 192, [64, 32, 8, 2]),
        ("LBNHC", 192, [64, 8, 16, 2]),
        ("LHBNC", 192, [32, 96, 8, 2]),
        ("BLHNC", 64, [128, 32, 8, 2]),
        ("BLNHC", 64, [128, 8, 16, 2]),
        ("BHLNC", 32, [128, 64, 8, 2]),
    ],
)
def test_where_the_second_of_two_layers_is(vllm: Ask, layout: str, offset: int, strides: list[int]) -> None:
    told = allocate(vllm, full(), full(), layout=layout)
    assert (told["buffers"], told["planned"], told["zero"]) == ([2 * BLOCKS * PAGE], 2 * BLOCKS * PAGE, True)
    assert told["groups"] == [["layer.0", "layer.1"]]
    assert told["layers"]["layer.1"] == {
        "views": [
            {
                "buffer": 0,
                "offset": offset,
                "axes": "BHNC",
                "shape": [BLOCKS, 2, 4, 4],
                "strides": strides,
                "itemsize": 2,
                "device": "cpu",
            }
        ],
        "page_size_bytes": PAGE,
        "content_size_bytes": PAGE,
        "block_stride": strides[0],
    }


def test_what_a_layer_writes_is_in_the_rows(vllm: Ask) -> None:
    """The layers' pages lie in the order of their views, so each row is one page of one layer."""
    allocate(vllm, full(), full(), layout="LBHNC")
    registered = vllm("canonical.register")
    assert [(each["offset"], each["shape"], each["strides"]) for each in registered["tensors"]] == [
        (0, [BLOCKS, PAGE], [PAGE, 1]),
        (BLOCKS * PAGE, [BLOCKS, PAGE], [PAGE, 1]),
    ]
    assert registered["groups"] == [[{"tensor": place, "page_size_bytes": PAGE} for place in (0, 1)]]
    written = vllm("tensors.write", layer="layer.1", block=2, seed=1)
    assert len(written) == 2 * PAGE
    assert vllm("canonical.read", tensor=1, row=2) == written
    assert vllm("canonical.read", tensor=0, row=2) == vllm("canonical.read", tensor=1, row=1) == "00" * PAGE
    vllm("canonical.copy", group=0, source=2, destination=0)
    assert vllm("tensors.read", layer="layer.1", block=0) == written
    assert vllm("tensors.read", layer="layer.1", block=1) == "00" * PAGE


def test_what_is_written_to_a_row_is_in_the_layers(vllm: Ask) -> None:
    """The layout puts blocks first, and tokens before heads. A row has the pages of both layers."""
    allocate(vllm, full(), full(), layout="BLNHC")
    registered = vllm("canonical.register")
    assert [each["shape"] for each in registered["tensors"]] == [[BLOCKS, 2 * PAGE]]
    assert registered["groups"] == [[{"tensor": 0, "page_size_bytes": 2 * PAGE}]]
    row = bytes.fromhex(vllm("canonical.write", tensor=0, row=1, seed=3))
    page = row[PAGE:]
    # A cell has 8 bytes. Memory has both heads of a token side by side, `read` has one head after the other.
    cells = [page[16 * token + 8 * head :][:8] for head in (0, 1) for token in range(4)]
    assert bytes.fromhex(vllm("tensors.read", layer="layer.1", block=1)) == b"".join(cells)


def test_states_have_a_view_each(vllm: Ask) -> None:
    told = allocate(vllm, STATES, layout="LBHNC")["layers"]["layer.0"]
    assert [(view["axes"], view["offset"], view["strides"]) for view in told["views"]] == [
        ("BSS", 0, [32, 12, 4]),
        ("BS", 24, [32, 2]),
    ]
    assert (told["page_size_bytes"], told["content_size_bytes"], told["block_stride"]) == (32, 32, 32)


def test_a_layer_that_shares_has_the_cache_of_its_target(vllm: Ask) -> None:
    told = allocate(vllm, full(), full(), layout="LBHNC", sharing=[["layer.2", "layer.1"]])
    assert told["groups"] == [["layer.0", "layer.1", "layer.2"]]
    assert told["planned"] == 2 * BLOCKS * PAGE
    assert told["layers"]["layer.2"] == told["layers"]["layer.1"]
    written = vllm("tensors.write", layer="layer.2", block=1, seed=2)
    assert vllm("tensors.read", layer="layer.1", block=1) == written
    # Connectors do not get the sharing layer.
    assert [len(refs) for refs in vllm("canonical.register")["groups"]] == [2]


def test_blocks_of_a_kernel_are_halves(vllm: Ask) -> None:
    told = allocate(vllm, full(), layout="LBHNC", kernel_block_size=2)["layers"]["layer.0"]
    assert (told["views"][0]["shape"], told["views"][0]["strides"]) == ([2 * BLOCKS, 2, 2, 4], [32, 16, 8, 2])
    assert told["block_stride"] == PAGE
    written = vllm("tensors.write", layer="layer.0", block=1, seed=4)
    vllm("canonical.register")
    assert vllm("canonical.read", tensor=0, row=1) == written


def test_what_vllm_refuses_is_refused(vllm: Ask) -> None:
    """The layers have different numbers of heads, and the layout takes heads apart. No engine would start."""
    with pytest.raises(Refused, match=r"^ValueError: .* need a block-compact layout"):
        allocate(vllm, full(), full(num_kv_heads=4), layout="LHBNC")


def test_layers_that_share_join_groups(vllm: Ask) -> None:
    joined = vllm(
        "sharing.join", groups=[["layer.0"], ["layer.1"]], sharing=[["layer.2", "layer.1"]], times=1
    )
    assert joined == {"groups": [["layer.0"], ["layer.1", "layer.2"]]}


def test_k_of_all_blocks_comes_first_in_an_older_release() -> None:
    """In 0.22.1, each layer has its own buffer, and a tensor each for K and V in the canonical view."""
    worker, _ = prepare("vllm==0.22.1", None, python=None, paths=(), stubs=())
    with performing(worker) as ask:
        told = allocate(ask, full(), full(), layout="LKBNHC", buffers="each")
        assert told["buffers"] == [BLOCKS * PAGE, BLOCKS * PAGE]
        [view] = told["layers"]["layer.1"]["views"]
        assert (view["buffer"], view["axes"], view["shape"]) == (1, "KBNHC", [2, BLOCKS, 4, 2, 2])
        assert view["strides"] == [96, 32, 8, 4, 2]
        rows = ask("canonical.register")["tensors"]
        assert [(each["buffer"], each["offset"], each["shape"]) for each in rows] == [
            (buffer, offset, [BLOCKS, 32]) for buffer in (0, 1) for offset in (0, 96)
        ]
        written = ask("tensors.write", layer="layer.1", block=2, seed=1)
        halves = [ask("canonical.read", tensor=tensor, row=2) for tensor in (2, 3)]
        assert halves == [written[:64], written[64:]]
