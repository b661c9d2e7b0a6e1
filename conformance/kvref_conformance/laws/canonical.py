"""Laws of the canonical view: the rows of bytes in which connectors see a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kvref_conformance.laws.addresses import Caches, Place, is_plain
from kvref_conformance.laws.core import Law, LawBroken, Level, Runs
from kvref_conformance.laws.plan import INTERNAL_ERRORS
from kvref_conformance.laws.registry import error_line


def registered(runs: Runs) -> Iterator[tuple[Caches, dict[str, Any]]]:
    """Each canonical view that was registered, with its cache. Caches with missing views are left out."""
    caches = None
    for event in runs[0]:
        if event["op"] == "tensors.allocate":
            caches = Caches(event) if "value" in event["outcome"] else None
            caches = caches if caches and caches.is_complete else None
        elif event["op"] == "canonical.register" and caches and "value" in event["outcome"]:
            yield caches, event["outcome"]["value"]


def total(runs: Runs) -> int:
    """A cache gets a canonical view or is deliberately refused one. Every operation on a view succeeds."""
    judged = 0
    caches: Caches | None = None
    seen = False
    for event in runs[0]:
        if event["op"] == "tensors.allocate" and "value" in event["outcome"]:
            caches = Caches(event)
        registering = event["op"] == "canonical.register"
        seen = seen or registering
        if not seen or caches is None or "died" in event["outcome"]:
            continue
        judged += 1
        if "error" in event["outcome"]:
            kind = event["outcome"]["error"]["type"]
            if not registering or is_plain(caches.args) or kind in INTERNAL_ERRORS:
                operation = event["op"].partition(".")[2]
                raise LawBroken(
                    f"{operation} succeeds for {caches.in_words()}",
                    error_line(event["outcome"]),
                    (f"{operation}, {kind}",),
                )
    return judged


def row_places(tensor: dict[str, Any], row: int, size: int) -> list[Place]:
    """The addresses of the first `size` bytes of a row."""
    start = tensor["offset"] + row * tensor["strides"][0]
    return [(tensor["buffer"], start + byte) for byte in range(size)]


def shape(runs: Runs) -> int:
    """Every canonical tensor is a view of the cache's own memory, with one row of bytes for each block."""
    judged = 0
    for caches, canonical in registered(runs):
        device = caches.args["device"]
        for number, tensor in enumerate(canonical["tensors"]):
            judged += 1
            wrong = {
                "shape": tensor["shape"] != [caches.num_blocks, tensor["page_size_bytes"]],
                "rows": tensor["strides"][-1:] != [1],
                "dtype": tensor["dtype"] != "torch.int8",
                "device": tensor["device"] != device,
                "copy": tensor["buffer"] is None,
            }
            if facets := tuple(facet for facet, broken in wrong.items() if broken):
                raise LawBroken(
                    f"canonical tensor {number} is an int8 view of {caches.num_blocks} rows of "
                    f"{tensor['page_size_bytes']} bytes on {device}, in the memory of the cache "
                    f"({caches.in_words()})",
                    f"{tensor['dtype']} of shape {tensor['shape']} with strides {tensor['strides']} on "
                    f"{tensor['device']}{', in memory of its own' if tensor['buffer'] is None else ''}",
                    facets,
                )
    return judged


def covers_once(runs: Runs) -> int:
    """A group's references to canonical tensors cover each byte of its layers in a block exactly once."""
    judged = 0
    for caches, canonical in registered(runs):
        for names, refs in zip(caches.answer["groups"], canonical["groups"], strict=False):
            if any(not 0 <= ref["tensor"] < len(canonical["tensors"]) for ref in refs):
                continue
            for block in range(caches.num_blocks):
                judged += 1
                covered = Counter(
                    place
                    for ref in refs
                    for place in row_places(
                        canonical["tensors"][ref["tensor"]], block, ref["page_size_bytes"]
                    )
                )
                for layer in [name for name in names if name in caches.owners]:
                    times = [covered[place] for place in caches.places(layer, block)]
                    if set(times) - {1}:
                        facet = "missing" if 0 in times else "several times"
                        raise LawBroken(
                            f"the references of its group cover the {len(times)} bytes of block {block} of "
                            f"{layer} once ({caches.in_words()})",
                            f"{times.count(0)} bytes are missing, {sum(t > 1 for t in times)} are covered "
                            "several times",
                            (facet,),
                        )
    return judged


def group_refs(runs: Runs) -> int:
    """Every group has a list of references to canonical tensors.

    Each reference names an existing tensor, and a page size of at least one byte and at most one row of that
    tensor. The page in row *b* holds bytes of block *b* alone.
    """
    judged = 0
    for caches, canonical in registered(runs):
        judged += 1
        tensors, groups = canonical["tensors"], canonical["groups"]
        if len(groups) != len(caches.answer["groups"]):
            raise LawBroken(
                f"references of {len(caches.answer['groups'])} groups", f"{len(groups)}", ("groups",)
            )
        kept = {
            place: block
            for layer in caches.owners
            for block in range(caches.num_blocks)
            for place in caches.places(layer, block)
        }
        for number, refs in enumerate(groups):
            for ref in refs:
                words = f"group {number}, of {caches.in_words()}"
                if not 0 <= ref["tensor"] < len(tensors):
                    raise LawBroken(
                        f"a reference to one of {len(tensors)} tensors for {words}",
                        f"tensor {ref['tensor']}",
                        ("tensor",),
                    )
                tensor, size = tensors[ref["tensor"]], ref["page_size_bytes"]
                if not 0 < size <= tensor["page_size_bytes"]:
                    raise LawBroken(
                        f"a reference to at most the {tensor['page_size_bytes']} bytes of a row for {words}",
                        f"{size} bytes",
                        ("size",),
                    )
                for row in range(caches.num_blocks):
                    others = {kept.get(place, row) for place in row_places(tensor, row, size)} - {row}
                    if others:
                        raise LawBroken(
                            f"only bytes of block {row} in row {row} of tensor {ref['tensor']}, for {words}",
                            f"bytes of block {min(others)}",
                            ("block",),
                        )
    return judged


def round_trip(runs: Runs) -> int:
    """A read through a layer or the canonical view returns the bytes that were written or copied there last.

    The law compares only bytes that the example wrote or copied. A copy moves the bytes of the group's
    layers. After it, bytes of other groups in the destination block are not judged.
    """
    judged = 0
    caches: Caches | None = None
    canonical: dict[str, Any] = {}
    memory: dict[Place, int] = {}
    for event in runs[0]:
        op, args, outcome = event["op"], event["args"], event["outcome"]
        if op == "tensors.allocate":
            caches = Caches(event) if "value" in outcome else None
            caches = caches if caches and caches.is_complete else None
            canonical, memory = {}, {}
        elif op == "canonical.register":
            canonical = outcome.get("value", {})
        if caches is None or not canonical or "value" not in outcome:
            continue
        if op == "canonical.copy":
            copy_in(memory, caches, canonical, args)
            continue
        if op in ("tensors.write", "tensors.read"):
            places = caches.places(args["layer"], args["block"])
            words = f"block {args['block']} of {args['layer']}"
        elif op in ("canonical.write", "canonical.read"):
            tensor = canonical["tensors"][args["tensor"]]
            places = row_places(tensor, args["row"], tensor["page_size_bytes"])
            words = f"row {args['row']} of canonical tensor {args['tensor']}"
        else:
            continue
        found = bytes.fromhex(outcome["value"])
        if len(found) != len(places):
            raise LawBroken(f"{len(places)} bytes for {words}", f"{len(found)}", ("length",))
        if op.endswith("write"):
            memory.update(zip(places, found, strict=True))
            continue
        known = [memory.get(place) for place in places]
        judged += any(byte is not None for byte in known)
        wrong = [
            at for at, (byte, now) in enumerate(zip(known, found, strict=True)) if byte not in (None, now)
        ]
        if wrong:
            at = wrong[0]
            raise LawBroken(
                f"{words}: byte {at} is {known[at]}, as written ({caches.in_words()})",
                f"{found[at]}, and {len(wrong)} of {len(found)} bytes are wrong",
                ("rows" if op == "canonical.read" else "layers",),
            )
    return judged


def copy_in(
    memory: dict[Place, int], caches: Caches, canonical: dict[str, Any], args: dict[str, Any]
) -> None:
    """Apply the copy of a block to the known bytes in `memory`. Forget bytes that are no longer certain."""
    source, destination = args["source"], args["destination"]
    layers = [name for name in caches.answer["groups"][args["group"]] if name in caches.owners]
    moved = {
        to: memory.get(at)
        for layer in layers
        for at, to in zip(caches.places(layer, source), caches.places(layer, destination), strict=True)
    }
    for ref in canonical["groups"][args["group"]]:
        tensor = canonical["tensors"][ref["tensor"]]
        for place in row_places(tensor, destination, ref["page_size_bytes"]):
            memory.pop(place, None)
    for place, byte in moved.items():
        memory.pop(place, None)
        if byte is not None:
            memory[place] = byte


LAWS = [
    Law(
        id="canonical.total",
        level=Level.SAFETY,
        statement=(
            "A cache gets a canonical view that can be read, written and copied, or is deliberately refused "
            "one; a cache of equal, unpadded full-attention layers is never refused."
        ),
        why="Otherwise an engine with a connector does not start, or fails at the first transfer.",
        sources=("vLLM PR 37853",),
        workload="canonical.rows",
        check=total,
    ),
    Law(
        id="canonical.shape",
        level=Level.SAFETY,
        statement=(
            "Every canonical tensor is a view of the cache's memory, not a copy: int8, on the cache's "
            "device, with a row of the tensor's page size for each block."
        ),
        why=(
            "Otherwise a connector moves elements of the wrong size, or saves a copy that no layer writes to."
        ),
        sources=("vLLM PR 37853",),
        workload="canonical.rows",
        check=shape,
    ),
    Law(
        id="canonical.covers-once",
        level=Level.SAFETY,
        statement=(
            "For each layer of a group, the group's references to canonical tensors cover every byte of a "
            "block exactly once; groups may share memory."
        ),
        why=(
            "A byte that is not covered is lost when a block is loaded back. A byte that is covered twice is "
            "moved twice."
        ),
        sources=("vLLM PR 37853",),
        workload="canonical.rows",
        check=covers_once,
    ),
    Law(
        id="canonical.round-trip",
        level=Level.SAFETY,
        statement=(
            "Bytes written through a layer are read through the canonical view, and the other way round; "
            "copying a block of a group copies the bytes of the group's layers and nothing else."
        ),
        why="Otherwise a request that continues from loaded blocks reads other bytes than were stored.",
        sources=("vLLM PR 37853",),
        workload="canonical.rows",
        check=round_trip,
    ),
    Law(
        id="canonical.group-refs",
        level=Level.SAFETY,
        statement=(
            "Every reference of a group names an existing canonical tensor and at most as many bytes as a "
            "row has, and the bytes in the row of a block belong to no other block."
        ),
        why="Otherwise a connector copies the wrong tensor, or writes into the block of another request.",
        sources=("vLLM PR 37853",),
        workload="canonical.rows",
        check=group_refs,
    ),
]
