"""Laws of memory: where the bytes of each layer and block are."""

from __future__ import annotations

from math import prod
from typing import Any

from kvref_conformance.laws.addresses import Place, allocations, blocks_per_block, complete, is_plain
from kvref_conformance.laws.core import Event, Law, LawBroken, Level, Runs
from kvref_conformance.laws.plan import INTERNAL_ERRORS
from kvref_conformance.laws.registry import told


def allocate_total(runs: Runs) -> int:
    """Caches are allocated, or refused by an error that is meant; those that nothing is in the way of, are.

    Those with layers that share are for `sharing.no-cost`.
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
        words = f"{len(arguments['layers'])} layers in layout {arguments['layout']}, {arguments['buffers']}"
        if kind in INTERNAL_ERRORS:
            raise LawBroken(f"{words}, or a refusal that is meant", told(event["outcome"]), (kind,))
        if is_plain(arguments) or is_together(arguments):
            raise LawBroken(f"{words}, which any layers can have", told(event["outcome"]), ("refused",))
    return judged


def is_together(arguments: dict[str, Any]) -> bool:
    """Whether what a layer keeps in a block lies in one piece, so that it does not matter what others keep.

    Kernel blocks need more: no other layer, and no padding, between a block and the next.
    """
    if arguments["kernel_block_size"] is None:
        return set(arguments["layout"][:2]) == {"L", "B"}
    specs = arguments["layers"].values()
    padded = any("page_size_padded" in spec["fields"] for spec in specs)
    return str(arguments["layout"]).startswith("LB") and not padded


def in_bounds(runs: Runs) -> int:
    """Every byte lies in its allocation, and is that of one block, and of one layer of a group.

    Layers of different groups may use the same byte, for the same block: it is in use by one group at a time.
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
                    raise LawBroken(f"a place for each byte of {words}", "one for several", ("itself",))
                for place in places:
                    buffer, byte = place
                    size = caches.told["buffers"][buffer]
                    if not 0 <= byte < size:
                        raise LawBroken(f"{words}, in its {size} bytes", f"byte {byte}", ("outside",))
                    other, other_block = of_block.setdefault(place, (layer, block))
                    if other_block == block:
                        other = in_group.setdefault((place, group), layer)
                    if other_block != block or other != layer:
                        raise LawBroken(
                            f"{words}, apart from block {other_block} of {other}",
                            f"both have byte {byte} of allocation {buffer}",
                            ("blocks" if other_block != block else "layers",),
                        )
    return judged


def block_stride(runs: Runs) -> int:
    """From a block to the next is as far as the plan has it, or a piece of that where pages are in pieces."""
    judged = 0
    for caches in complete(runs[0]):
        for layer in caches.owners:
            planned = caches.told["layers"][layer]["block_stride"]
            for view in caches.views(layer):
                judged += 1
                stride = stride_of_blocks(view, caches.num_blocks)
                if stride != planned and stride * pieces(view) != planned:
                    raise LawBroken(
                        f"{planned} bytes from a block of {layer} to the next, as planned, of "
                        f"{caches.in_words()}",
                        f"{stride}, with axes {view['axes']} of {view['shape']} and strides "
                        f"{view['strides']}",
                        (view["axes"],),
                    )
    return judged


def stride_of_blocks(view: dict[str, Any], num_blocks: int) -> int:
    """Bytes from a block of the pool to the next."""
    return int(view["strides"][view["axes"].index("B")] * blocks_per_block(view, num_blocks))


def pieces(view: dict[str, Any]) -> int:
    """How many pieces a page is in, where an axis lies outside that of blocks."""
    inner = view["strides"][view["axes"].index("B")]
    outside = [s for s, stride in zip(view["shape"], view["strides"], strict=True) if stride > inner]
    return prod(outside)


def layout_stable(runs: Runs) -> int:
    """The axes are in one order, whatever the number of blocks and heads and the dtype.

    That is: layers alike in all else have their axes in the same order; with the same layers also the strides
    within a block are the same; and what can be laid out for some blocks can be for others.
    """
    judged = 0
    made = {id(caches.told) for caches in complete(runs[0])}
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
    """What the layers are but for their heads and dtypes."""
    free = ("num_kv_heads", "dtype")
    return {
        name: (spec["class"], {k: v for k, v in spec["fields"].items() if k not in free})
        for name, spec in event["args"]["layers"].items()
    }


def refuse_other_layout(one: Event, other: Event) -> None:
    """Raise `LawBroken` if two allocations are laid out in different ways."""
    words = f"layout {one['args']['layout']} for {one['args']['num_blocks']} blocks as for "
    words += f"{other['args']['num_blocks']}"
    if ("value" in one["outcome"]) != ("value" in other["outcome"]):
        refused, made = (one, other) if "error" in one["outcome"] else (other, one)
        if refused["args"]["layers"] == made["args"]["layers"]:
            raise LawBroken(
                words,
                f"for {refused['args']['num_blocks']}: {told(refused['outcome'])}",
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
                    f"{words}: the axes of {layer} in one order",
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
                    f"{words}: the strides of {layer} within a block",
                    f"{strides[0]} and {strides[1]}",
                    ("strides",),
                )


def same_order(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether no two axes have changed places. Of an axis with one place that cannot be seen."""
    if one["axes"] != other["axes"]:
        return False
    seen = [place for place in range(len(one["axes"])) if min(one["shape"][place], other["shape"][place]) > 1]
    return sorted(seen, key=lambda p: one["strides"][p]) == sorted(seen, key=lambda p: other["strides"][p])


def kernel_split(runs: Runs) -> int:
    """Kernel blocks of a block have its bytes, each once: those that it has where it is not split."""
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
                        f"the {len(expected)} bytes of block {block} of {layer}, each once, of "
                        f"{split.in_words()}",
                        f"{len(places)} bytes, {missing} of them missing",
                        ("missing" if missing else "more",),
                    )
    return judged


def sum_is_plan(runs: Runs) -> int:
    """What is allocated is what was planned, and every layer has a place for each block of the pool.

    A place, that is, for all that its page is said to hold. Of kernel blocks that is for another law.
    """
    judged = 0
    for caches in allocations(runs[0]):
        judged += 1
        split = caches.args["kernel_block_size"] is not None
        total, planned = sum(caches.told["buffers"]), caches.told["planned"]
        if total != planned:
            raise LawBroken(f"the {planned} planned bytes for {caches.in_words()}", f"{total}", ("bytes",))
        for layer in caches.names:
            told = caches.told["layers"].get(layer)
            if told is None or not told["views"]:
                raise LawBroken(f"memory for {layer}, of {caches.in_words()}", "none", ("layer",))
            for view in told["views"]:
                blocks = view["shape"][view["axes"].index("B")]
                if blocks < caches.num_blocks or blocks % caches.num_blocks:
                    raise LawBroken(
                        f"{caches.num_blocks} blocks for {layer}, or as many times more of the kernel's",
                        f"{blocks}",
                        ("blocks",),
                    )
            size = sum(prod(view["shape"]) * view["itemsize"] for view in told["views"]) // caches.num_blocks
            if not split and not 0 < size == told["content_size_bytes"] <= told["page_size_bytes"]:
                raise LawBroken(
                    f"{told['content_size_bytes']} bytes for {layer} in a block, and some, of "
                    f"{caches.in_words()}",
                    f"{size}, in pages of {told['page_size_bytes']}",
                    ("content",),
                )
    return judged


def zeroed(runs: Runs) -> int:
    """All memory reads zero at first."""
    for caches in complete(runs[0]):
        if not caches.told["zero"]:
            raise LawBroken(f"nothing but zeros at first, in {caches.in_words()}", "something else")
    return len(complete(runs[0]))


def one_buffer(runs: Runs) -> int:
    """In contiguous mode there is one allocation, and every layer sees its part of it as it otherwise would.

    Where blocks come before layers, the distance from block to block is no layer's own.
    """
    judged = 0
    made = complete(runs[0])
    for caches in [each for each in made if each.args["buffers"] == "one"]:
        judged += 1
        number = len(caches.told["buffers"])
        if number != 1:
            raise LawBroken(f"one allocation for {caches.in_words()}", f"{number} of them", ("allocations",))
        for apart in [each for each in made if each.args == {**caches.args, "buffers": "each"}]:
            for layer in caches.owners:
                for one, other in zip(caches.views(layer), apart.views(layer), strict=True):
                    names = ("axes", "shape", "strides", "itemsize")
                    if [one[name] for name in names] != [other[name] for name in names]:
                        raise LawBroken(
                            f"{layer} with {', '.join(f'{name} {other[name]}' for name in names)}, as in an "
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
            "A cache is allocated, or refused by an error that is meant. It is allocated in every layout "
            "declared if all layers are of full attention and alike, and for any layers where what a layer "
            "keeps in a block lies in one piece."
        ),
        why="An engine does not start, and whoever reads why learns nothing.",
        sources=("vLLM PR 36359", "vLLM PR 31635"),
        workload="tensors.layouts",
        check=allocate_total,
    ),
    Law(
        id="tensors.in-bounds",
        level=Level.SAFETY,
        statement=(
            "What a layer keeps in a block lies inside its allocation, and apart from every other block, and "
            "from every other layer of its group."
        ),
        why="A token is written over another one's, of another request perhaps, or over something else.",
        sources=("vLLM PR 36359", "vLLM PR 31635"),
        workload="tensors.layouts",
        check=in_bounds,
    ),
    Law(
        id="tensors.block-stride",
        level=Level.SAFETY,
        statement=(
            "From a block of a layer to the next are as many bytes as the plan has, padding included, "
            "wherever the axis of blocks stands in the layer's view."
        ),
        why="Who addresses blocks by the plan (a connector, say) hits others than the layer does.",
        sources=("vLLM PR 31635",),
        workload="tensors.layouts",
        check=block_stride,
    ),
    Law(
        id="tensors.layout-stable",
        level=Level.SAFETY,
        statement=(
            "In which order the axes of a layer are in memory does not depend on the number of blocks, two "
            "included, nor on that of heads, nor on the dtype."
        ),
        why="A shape that happens to look like another is taken for it: K is read as a block, or V as K.",
        sources=("vLLM PR 31635",),
        workload="tensors.layouts",
        check=layout_stable,
    ),
    Law(
        id="tensors.kernel-split",
        level=Level.SAFETY,
        statement="Blocks of the kernel that are smaller than those of the pool tile these exactly.",
        why="A kernel writes into a block that the scheduler has given to another request.",
        sources=("vLLM PR 31635",),
        workload="tensors.layouts",
        check=kernel_split,
        capabilities=("kernel_blocks",),
    ),
    Law(
        id="tensors.sum-is-plan",
        level=Level.SAFETY,
        statement=(
            "As many bytes are allocated as planned, and every block that the pool can hand out has its "
            "place in every layer."
        ),
        why="Memory runs out although the plan fits, or the last blocks lie outside.",
        sources=("vLLM PR 36359",),
        workload="tensors.layouts",
        check=sum_is_plan,
    ),
    Law(
        id="tensors.zeroed",
        level=Level.SAFETY,
        statement="Memory reads zero when it is new, whatever it held for others before.",
        why="Kernels that read beyond what is written meet values like NaN, which spread.",
        sources=("vLLM PR 36359",),
        workload="tensors.layouts",
        check=zeroed,
        capabilities=("zeroed",),
    ),
    Law(
        id="tensors.one-buffer",
        level=Level.SAFETY,
        statement=(
            "In contiguous mode all layers are views of one allocation, and look as they do where each "
            "tensor is an allocation."
        ),
        why="Whoever registers that one memory region for transfers misses layers, or sees them elsewhere.",
        sources=("vLLM PR 36359",),
        workload="tensors.layouts",
        check=one_buffer,
    ),
]
