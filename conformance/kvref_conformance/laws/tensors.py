"""Laws of memory: the bytes of each layer and block in the allocated tensors."""

from __future__ import annotations

from math import prod
from typing import Any

from kvref_conformance.laws.addresses import Place, allocations, blocks_per_block, complete, is_plain
from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs
from kvref_conformance.laws.plan import INTERNAL_ERRORS
from kvref_conformance.laws.registry import error_line


def allocate_total(runs: Runs) -> int:
    """A cache is allocated or deliberately refused.

    It must not be refused if its layers fit every layout, or if its layout fits all layers. `sharing.no-cost`
    judges caches with layers that share.
    """
    judged = 0
    for event in runs[0]:
        sharing = event["args"].get("sharing")
        if event["op"] != "tensors.allocate" or sharing or "died" in event["outcome"]:
            continue
        judged += 1
        if "error" not in event["outcome"]:
            continue
        arguments, kind = event["args"], event["outcome"]["error"]["type"]
        words = (
            f"a cache of {len(arguments['layers'])} layers in layout {arguments['layout']}, "
            f"{arguments['buffers']}"
        )
        if kind in INTERNAL_ERRORS:
            raise LawBroken(f"{words}, or a deliberate refusal", error_line(event["outcome"]), (kind,))
        if is_plain(arguments) or is_together(arguments):
            raise LawBroken(
                f"{words}, because these layers fit any layout or this layout fits any layers",
                error_line(event["outcome"]),
                ("refused",),
            )
    return judged


def is_together(arguments: dict[str, Any]) -> bool:
    """Whether the layout keeps each page in one piece, so that it fits layers with pages of any size.

    Kernel blocks need more: no other layer and no padding between one block and the next.
    """
    if arguments["kernel_block_size"] is None:
        return set(arguments["layout"][:2]) == {"L", "B"}
    specs = arguments["layers"].values()
    padded = any("page_size_padded" in spec["fields"] for spec in specs)
    return str(arguments["layout"]).startswith("LB") and not padded


def in_bounds(runs: Runs) -> int:
    """Every byte lies in its allocation, and belongs to one block and to one layer of each group.

    Layers of different groups may use the same byte of the same block, because one group at a time uses a
    block.
    """
    judged = 0
    for caches in complete(runs[0]):
        judged += 1
        in_group: dict[tuple[Place, int], str] = {}
        of_block: dict[Place, tuple[str, int]] = {}
        for layer in caches.owners:
            group = caches.group_of[layer]
            for block in range(caches.num_blocks):
                places = caches.places(layer, block)
                words = f"block {block} of {layer}, of {caches.in_words()}"
                if len(set(places)) < len(places):
                    raise LawBroken(
                        f"an address of its own for each byte of {words}",
                        "several bytes share one",
                        ("itself",),
                    )
                for place in places:
                    buffer, byte = place
                    size = caches.answer["buffers"][buffer]
                    if not 0 <= byte < size:
                        raise LawBroken(
                            f"{words} lies inside its allocation of {size} bytes",
                            f"byte {byte}",
                            ("outside",),
                        )
                    other, other_block = of_block.setdefault(place, (layer, block))
                    if other_block == block:
                        other = in_group.setdefault((place, group), layer)
                    if other_block != block or other != layer:
                        raise LawBroken(
                            f"{words} does not overlap block {other_block} of {other}",
                            f"both use byte {byte} of allocation {buffer}",
                            ("blocks" if other_block != block else "layers",),
                        )
    return judged


def block_stride(runs: Runs) -> int:
    """The stride from one block to the next is the planned one.

    If each page lies in several pieces, for example in a layout with all K before all V, the stride is the
    planned one divided by the number of pieces.
    """
    judged = 0
    for caches in complete(runs[0]):
        for layer in caches.owners:
            planned = caches.answer["layers"][layer]["block_stride"]
            for view in caches.views(layer):
                judged += 1
                stride = stride_of_blocks(view, caches.num_blocks)
                if stride != planned and stride * pieces(view) != planned:
                    raise LawBroken(
                        f"the planned block stride of {planned} bytes for {layer}, of {caches.in_words()}",
                        f"{stride} bytes, with axes {view['axes']}, shape {view['shape']} and strides "
                        f"{view['strides']}",
                        (view["axes"],),
                    )
    return judged


def stride_of_blocks(view: dict[str, Any], num_blocks: int) -> int:
    """The bytes from one block of the pool to the next."""
    return int(view["strides"][view["axes"].index("B")] * blocks_per_block(view, num_blocks))


def pieces(view: dict[str, Any]) -> int:
    """The number of pieces of a page: more than one if an axis lies outside the axis of blocks."""
    inner = view["strides"][view["axes"].index("B")]
    outside = [s for s, stride in zip(view["shape"], view["strides"], strict=True) if stride > inner]
    return prod(outside)


def layout_stable(runs: Runs) -> int:
    """The order of the axes does not depend on the number of blocks, the number of heads or the dtype.

    Layers that differ only in these have their axes in the same order. The same layers also have the same
    strides within a block, and a layout that works for one number of blocks works for any.
    """
    judged = 0
    made = {id(caches.answer) for caches in complete(runs[0])}
    calls = [
        e
        for e in runs[0]
        if e["op"] == "tensors.allocate"
        and ("error" in e["outcome"] or id(e["outcome"].get("value")) in made)
    ]
    for place, event in enumerate(calls):
        for other in calls[:place]:
            same = ("layout", "buffers", "kernel_block_size", "sharing")
            if any(event["args"][name] != other["args"][name] for name in same):
                continue
            if shape_of(event) != shape_of(other):
                continue
            judged += 1
            refuse_other_layout(other, event)
    return judged


def shape_of(event: Event) -> dict[str, Any]:
    """The layers without their heads and dtypes."""
    free = ("num_kv_heads", "dtype")
    return {
        name: (spec["class"], {k: v for k, v in spec["fields"].items() if k not in free})
        for name, spec in event["args"]["layers"].items()
    }


def refuse_other_layout(one: Event, other: Event) -> None:
    """Raise `LawBroken` if two allocations have different layouts."""
    words = f"the same layout {one['args']['layout']} for {one['args']['num_blocks']} and "
    words += f"{other['args']['num_blocks']} blocks"
    if ("value" in one["outcome"]) != ("value" in other["outcome"]):
        refused, made = (one, other) if "error" in one["outcome"] else (other, one)
        if refused["args"]["layers"] == made["args"]["layers"]:
            raise LawBroken(
                words,
                f"for {refused['args']['num_blocks']} blocks: {error_line(refused['outcome'])}",
                (f"refused, {refused['outcome']['error']['type']}",),
            )
        return
    if "error" in one["outcome"]:
        return
    same_layers = one["args"]["layers"] == other["args"]["layers"]
    for layer in one["args"]["layers"]:
        views = zip(
            *(each["outcome"]["value"]["layers"][layer]["views"] for each in (one, other)), strict=True
        )
        for first, second in views:
            if not same_order(first, second):
                raise LawBroken(
                    f"{words}: the axes of {layer} in the same order",
                    f"{first['axes']} with strides {first['strides']} and {second['strides']}",
                    ("order",),
                )
            strides = [
                {a: s for a, s in zip(view["axes"], view["strides"], strict=True) if s < block}
                for view in (first, second)
                for block in [view["strides"][view["axes"].index("B")]]
            ]
            if same_layers and strides[0] != strides[1]:
                raise LawBroken(
                    f"{words}: the same strides of {layer} within a block",
                    f"{strides[0]} and {strides[1]}",
                    ("strides",),
                )


def same_order(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the axes are in the same order in memory. Axes of size 1 are left out."""
    if one["axes"] != other["axes"]:
        return False
    seen = [place for place in range(len(one["axes"])) if min(one["shape"][place], other["shape"][place]) > 1]
    return sorted(seen, key=lambda p: one["strides"][p]) == sorted(seen, key=lambda p: other["strides"][p])


def kernel_split(runs: Runs) -> int:
    """The kernel blocks of a block together cover exactly the bytes of the whole block, each byte once."""
    judged = 0
    made = complete(runs[0])
    for split in made:
        if split.args["kernel_block_size"] is None:
            continue
        whole = next(
            (each for each in made if each.args == {**split.args, "kernel_block_size": None}),
            None,
        )
        if whole is None:
            continue
        for layer in split.owners:
            judged += 1
            for block in range(split.num_blocks):
                places, expected = split.places(layer, block), whole.places(layer, block)
                if sorted(places) != sorted(expected):
                    missing = len(set(expected) - set(places))
                    raise LawBroken(
                        f"kernel blocks that cover the {len(expected)} bytes of block {block} of {layer} "
                        f"once, of {split.in_words()}",
                        f"they cover {len(places)} bytes, and {missing} are missing",
                        ("missing" if missing else "more",),
                    )
    return judged


def sum_is_plan(runs: Runs) -> int:
    """The planned bytes are allocated, and every layer has room for each block of the pool.

    Room means all bytes of the page's content. With kernel blocks, `tensors.kernel-split` judges these bytes.
    """
    judged = 0
    for caches in allocations(runs[0]):
        judged += 1
        split = caches.args["kernel_block_size"] is not None
        total, planned = sum(caches.answer["buffers"]), caches.answer["planned"]
        if total != planned:
            raise LawBroken(f"the {planned} planned bytes for {caches.in_words()}", f"{total}", ("bytes",))
        for layer in caches.names:
            answer = caches.answer["layers"].get(layer)
            if answer is None or not answer["views"]:
                raise LawBroken(f"memory for {layer}, of {caches.in_words()}", "none", ("layer",))
            for view in answer["views"]:
                blocks = view["shape"][view["axes"].index("B")]
                if blocks < caches.num_blocks or blocks % caches.num_blocks:
                    raise LawBroken(
                        f"{caches.num_blocks} blocks for {layer}, or a multiple for kernel blocks",
                        f"{blocks}",
                        ("blocks",),
                    )
            size = (
                sum(prod(view["shape"]) * view["itemsize"] for view in answer["views"]) // caches.num_blocks
            )
            if not split and not 0 < size == answer["content_size_bytes"] <= answer["page_size_bytes"]:
                raise LawBroken(
                    f"views of {answer['content_size_bytes']} bytes for {layer} in each block, more than "
                    f"none, within the page size, of {caches.in_words()}",
                    f"{size} bytes, with a page size of {answer['page_size_bytes']}",
                    ("content",),
                )
    return judged


def zeroed(runs: Runs) -> int:
    """New memory reads zero."""
    for caches in complete(runs[0]):
        if not caches.answer["zero"]:
            raise LawBroken(f"only zeros in the new memory of {caches.in_words()}", "other values")
    return len(complete(runs[0]))


def one_buffer(runs: Runs) -> int:
    """In contiguous mode (`buffers` is `one`) there is a single allocation.

    Layers have the same views in it as in allocations of their own.
    """
    judged = 0
    made = complete(runs[0])
    for caches in [each for each in made if each.args["buffers"] == "one"]:
        judged += 1
        number = len(caches.answer["buffers"])
        if number != 1:
            raise LawBroken(f"one allocation for {caches.in_words()}", f"{number}", ("allocations",))
        for apart in [each for each in made if each.args == {**caches.args, "buffers": "each"}]:
            for layer in caches.owners:
                for one, other in zip(caches.views(layer), apart.views(layer), strict=True):
                    names = ("axes", "shape", "strides", "itemsize")
                    if [one[name] for name in names] != [other[name] for name in names]:
                        raise LawBroken(
                            f"{layer} has {', '.join(f'{name} {other[name]}' for name in names)}, as in an "
                            "allocation of its own",
                            ", ".join(f"{name} {one[name]}" for name in names),
                            ("views",),
                        )
    return judged


LAWS = [
    Law(
        id="tensors.allocate-total",
        level=Level.SAFETY,
        statement=(
            "A cache is allocated or deliberately refused. It must be allocated in every declared layout if "
            "all its layers are equal full-attention layers, and for any layers if the layout keeps each "
            "page in one piece."
        ),
        why="Otherwise the engine does not start, and its error message does not say why.",
        sources=("vLLM PR 36359", "vLLM PR 31635"),
        workload="tensors.layouts",
        check=allocate_total,
    ),
    Law(
        id="tensors.in-bounds",
        level=Level.SAFETY,
        statement=(
            "The bytes of a block in a layer lie inside the layer's allocation and overlap neither another "
            "block nor another layer of its group."
        ),
        why="Otherwise a token overwrites another token, perhaps of another request, or other memory.",
        sources=("vLLM PR 36359", "vLLM PR 31635"),
        workload="tensors.layouts",
        check=in_bounds,
    ),
    Law(
        id="tensors.block-stride",
        level=Level.SAFETY,
        statement=(
            "The block stride of a layer's view is that of the plan, including padding, no matter which axis "
            "of the view counts the blocks."
        ),
        why="Otherwise code that addresses blocks by the plan, such as a connector, moves the wrong bytes.",
        sources=("vLLM PR 31635",),
        workload="tensors.layouts",
        check=block_stride,
    ),
    Law(
        id="tensors.layout-stable",
        level=Level.SAFETY,
        statement=(
            "The order of a layer's axes in memory does not depend on the number of blocks (not even if it "
            "is 2), the number of heads or the dtype."
        ),
        why=(
            "Otherwise code takes one axis for another one of the same size: it reads K as a block, or V as "
            "K."
        ),
        sources=("vLLM PR 31635",),
        workload="tensors.layouts",
        check=layout_stable,
    ),
    Law(
        id="tensors.kernel-split",
        level=Level.SAFETY,
        statement="Kernel blocks that are smaller than the blocks of the pool cover each block exactly.",
        why="Otherwise a kernel writes into a block of another request.",
        sources=("vLLM PR 31635",),
        workload="tensors.layouts",
        check=kernel_split,
        capabilities=("kernel_blocks",),
    ),
    Law(
        id="tensors.sum-is-plan",
        level=Level.SAFETY,
        statement=(
            "Exactly the planned bytes are allocated, and every block of the pool has room in every layer."
        ),
        why="Otherwise memory runs out although the plan fits, or the last blocks lie outside the memory.",
        sources=("vLLM PR 36359",),
        workload="tensors.layouts",
        check=sum_is_plan,
    ),
    Law(
        id="tensors.zeroed",
        level=Level.SAFETY,
        statement="New cache memory reads zero, whatever it held before.",
        why="Kernels read past the written tokens, and values such as NaN would spread from there.",
        sources=("vLLM PR 36359",),
        workload="tensors.layouts",
        check=zeroed,
        capabilities=("zeroed",),
    ),
    Law(
        id="tensors.one-buffer",
        level=Level.SAFETY,
        statement=(
            "In contiguous mode all layers are views of one allocation, with the same shape and strides as "
            "in allocations of their own."
        ),
        why=(
            "Otherwise a connector that registers this memory for transfers misses layers, or moves the "
            "wrong bytes."
        ),
        sources=("vLLM PR 36359",),
        workload="tensors.layouts",
        check=one_buffer,
    ),
]
