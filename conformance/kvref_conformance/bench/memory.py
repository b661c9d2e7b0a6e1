"""Benchmarks of a cache's memory: allocate it, make views for layers and connectors, copy blocks."""

from __future__ import annotations

import random

from kvref_conformance.bench.benchmark import Benchmark, Limit, Params, Prepared, Subject
from kvref_conformance.bench.calls import prepared
from kvref_conformance.bench.limits import QUEUED
from kvref_conformance.bench.planning import SIZES
from kvref_conformance.targets.bench_models import FULL, PAGE, SMALL, full_of, layers_of

LAYERS = 64
FEW = 4
"""The number of blocks in benchmarks whose size is the number of layers."""
LAYOUTS = ["LBNHC", "LKBNHC", "BLNHC"]
"""Layouts: layer by layer; layer by layer, with all K before all V; block by block."""


def allocate(subject: Subject, buffers: str, num_blocks: int, device: str) -> Prepared:
    """Allocate a large cache: most of the time goes into clearing the memory."""
    layers = layers_of([FULL], LAYERS)
    return prepared(subject.calls.allocate(layers, num_blocks, LAYOUTS[0], buffers, device), device=device)


def reshape(subject: Subject, layout: str, buffers: str, layers: int, device: str) -> Prepared:
    """Allocate a small cache for many layers: most of the time goes into making the layers' views."""
    call = subject.calls.allocate(layers_of([SMALL], layers), FEW, layout, buffers, device)
    return prepared(call, device=device)


def register(subject: Subject, layout: str, layers: int, device: str) -> Prepared:
    """Make the canonical view of all layers."""
    return prepared(subject.calls.register(layers_of([SMALL], layers), FEW, layout, device), device=device)


def copy(subject: Subject, layout: str, page: int, blocks: int, device: str) -> Prepared:
    """Copy random blocks of the cache to other blocks."""
    places = random.Random(0).sample(range(1, 1 + 2 * blocks), 2 * blocks)
    pairs = list(zip(places[:blocks], places[blocks:], strict=True))
    layers = layers_of([full_of(page)], LAYERS)
    call = subject.calls.copy(layers, 1 + 2 * blocks, layout, device, pairs)
    return prepared(call, times=QUEUED, device=device)


def _one_buffer(params: Params) -> bool:
    """Whether the layout works with these buffers. A layout that is not layer by layer needs one buffer."""
    return bool(params["layout"][0] == "L" or params["buffers"] == "one")


def _all_cleared(params: Params) -> Limit:
    size = params["num_blocks"] * LAYERS * PAGE
    return Limit("limit.memset", {"size": size, "device": params["device"]}, 1)


def _all_copied(params: Params) -> Limit:
    size = params["blocks"] * LAYERS * params["page"]
    return Limit("limit.copy", {"size": size, "device": params["device"]}, 1)


BENCHMARKS = [
    Benchmark(
        "tensors.allocate",
        f"allocating zeroed blocks of {LAYERS * PAGE >> 20} MiB",
        allocate,
        {"buffers": ["each", "one"], "num_blocks": [16, 64, 256]},
        quick={"num_blocks": [4]},
        cuda={"num_blocks": [256, 1_024, 4_096, 12_288]},
        growth="num_blocks",
        limit=_all_cleared,
    ),
    Benchmark(
        "tensors.reshape",
        "making the views of layers for a few blocks",
        reshape,
        {"layout": LAYOUTS, "buffers": ["each", "one"], "layers": SIZES},
        quick={"layers": SIZES[:2]},
        cuda={},
        growth="layers",
        possible=_one_buffer,
    ),
    Benchmark(
        "canonical.register",
        "making the canonical view of all layers",
        register,
        {"layout": LAYOUTS, "layers": SIZES},
        quick={"layers": SIZES[:2]},
        cuda={},
        growth="layers",
    ),
    Benchmark(
        "canonical.copy",
        f"copying blocks of {LAYERS} pages",
        copy,
        {"layout": LAYOUTS, "page": [PAGE], "blocks": [1, 8, 32]},
        quick={"blocks": [1]},
        cuda={"page": [PAGE, 16 * PAGE], "blocks": [1, 32, 256]},
        growth="blocks",
        limit=_all_copied,
    ),
]
