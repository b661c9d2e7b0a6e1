"""Layers that share another layer's cache: legally, as in models, or illegally, with no cache to share."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from kvref_strategies.tensors import draw_layers, layouts_for, tensor_subjects
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

NUMBER = st.one_of(st.integers(1, 4), st.integers(1, 60))
"""The number of sharing layers: few, or more than any model has."""

A_FEW = st.integers(0, 3)

LONGEST_CYCLE = 8
"""Short enough for an error message to name every layer of it."""

KINDS = ("attention", "other heads", "windows")
"""Families of `tensors` whose layers can be shared: equal pages, different pages, shared memory."""

STEPS = 6
"""The most writes in an example."""

Pairs = list[tuple[str, str]]
"""Sharing layers with their targets."""

# Layers are numbered: first the owners, then the sharing layers, and last one layer that neither owns nor
# shares a cache. `targets` has the target of each sharing layer, in the order in which they were drawn.


def _draw_groups(draw: Draw) -> list[list[str]]:
    """Draw groups of layers that own a cache."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    return [
        [f"layer.{sum(sizes[:place]) + each}" for each in range(size)] for place, size in enumerate(sizes)
    ]


def _count(groups: list[list[str]]) -> int:
    return sum(map(len, groups))


def _grow(draw: Draw, targets: list[int], number: int, owners: int) -> None:
    """Add sharing layers. Each one targets an earlier layer, an owner twice as often as a sharing layer."""
    for _ in range(number):
        # One number for each, because Hypothesis reduces that best.
        drawn = draw(st.integers(0, 2 * owners + len(targets) - 1))
        targets.append(drawn if drawn < owners else drawn - owners)


def _listings(draw: Draw, targets: list[int], owners: int) -> tuple[Pairs, Pairs]:
    """The sharing layers with their targets, in two orders: as drawn, and as a model may list them."""
    numbers = [draw(st.integers(0, len(targets))) for _ in targets]
    order = sorted(range(len(targets)), key=lambda drawn: numbers[drawn])
    place = {drawn: listed for listed, drawn in enumerate(order)}

    def name(number: int) -> str:
        is_owner = number < owners
        return f"layer.{number if is_owner else owners + place.get(number - owners, len(targets))}"

    drawn = [(name(owners + number), name(target)) for number, target in enumerate(targets)]
    return drawn, [drawn[number] for number in order]


def graphs(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Join layers whose targets lead to owners: first with each layer after its target, then in any order.

    Perhaps join them twice, as an engine with a draft model does.
    """
    groups = _draw_groups(draw)
    owners, number = _count(groups), draw(NUMBER)
    targets: list[int] = []
    if subject == "forests":
        _grow(draw, targets, number, owners)
    else:
        targets.append(draw(st.integers(0, owners - 1)))
        for place in range(1, number):
            # The target is the latest sharing layer, or any of them, or the owner of all.
            earlier = place if subject == "chains" else draw(st.integers(0, place))
            targets.append(owners + earlier - 1 if earlier else targets[0])
    drawn, listed = _listings(draw, targets, owners)
    stage.perform("sharing.join", groups=groups, sharing=drawn, times=1)
    if listed != drawn:
        stage.perform("sharing.join", groups=groups, sharing=listed, times=1)
    if draw(st.booleans()):
        stage.perform("sharing.join", groups=groups, sharing=listed, times=2)


def cycles(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Join layers. Some of them form a cycle. Others lead into the cycle, or share the cache of an owner."""
    groups = _draw_groups(draw)
    owners, targets = _count(groups), list[int]()
    length = 1 if subject == "self-loops" else draw(st.integers(2, LONGEST_CYCLE))
    _grow(draw, targets, draw(A_FEW), owners)
    first = owners + len(targets)
    targets += [first + (place + 1) % length for place in range(length)]
    _grow(draw, targets, draw(A_FEW), owners)
    _, listed = _listings(draw, targets, owners)
    stage.perform("sharing.join", groups=groups, sharing=listed, times=1)


def dangling(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Join layers. One targets a layer without a cache. Others lead to it, or share an owner's cache."""
    groups = _draw_groups(draw)
    owners, targets = _count(groups), list[int]()
    _grow(draw, targets, draw(A_FEW), owners)
    length = 1 if subject == "targets" else draw(st.integers(2, LONGEST_CYCLE))
    behind = draw(A_FEW) if subject == "chains" else 0
    first = owners + len(targets)
    targets += [first + place for place in range(1, length)]
    targets.append(first + length + behind)
    _grow(draw, targets, behind, owners)
    _, listed = _listings(draw, targets, owners)
    stage.perform("sharing.join", groups=groups, sharing=listed, times=1)


def tensors(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Allocate layers, perhaps first without the sharing ones. Write through one layer, read through another.

    If both layers use the same cache and block, read after the write; else read before and after it. Block 0
    is not used, because requests never hold it.
    """
    layers = draw_layers(draw, stage, description, subject)
    if not layers:
        return
    targets: list[int] = []
    _grow(draw, targets, draw(st.sampled_from([0, 1, 1, 2, 2, 3, 4])), len(layers))
    _, sharing = _listings(draw, targets, len(layers))
    num_blocks = draw(st.sampled_from([3, 2, 4]))
    arguments = {
        "layers": layers,
        "num_blocks": num_blocks,
        "layout": draw(st.sampled_from(layouts_for(description, layers))),
        "buffers": draw(st.sampled_from(description["capabilities"]["buffers"])),
        "kernel_block_size": None,
        "device": description["device"],
    }
    if sharing and draw(st.sampled_from([False, True, True])):
        stage.perform("tensors.allocate", **arguments, sharing=[])
    if "value" not in stage.perform("tensors.allocate", **arguments, sharing=sharing):
        return
    targets_by_name = dict(sharing)
    names: SearchStrategy[str] = st.sampled_from([*layers, *targets_by_name])
    block = st.integers(1, num_blocks - 1)
    elsewhere = st.sampled_from([0, 0, 1])
    steps = draw(st.lists(st.tuples(names, names, block, elsewhere), max_size=STEPS))
    for seed, (writer, reader, written, further) in enumerate(steps, 1):
        read = 1 + (written - 1 + further) % (num_blocks - 1)
        if _owner(writer, targets_by_name) != _owner(reader, targets_by_name) or read != written:
            stage.perform("tensors.read", layer=reader, block=read)
            stage.perform("tensors.write", layer=writer, block=written, seed=seed)
        else:
            stage.perform("tensors.write", layer=writer, block=written, seed=seed)
            stage.perform("tensors.read", layer=writer, block=written)
        stage.perform("tensors.read", layer=reader, block=read)


def _owner(layer: str, targets: dict[str, str]) -> str:
    return _owner(targets[layer], targets) if layer in targets else layer


def _graph_subjects(description: Description) -> Subjects:
    return {"chains": None, "trees": None, "forests": None}


def _cycle_subjects(description: Description) -> Subjects:
    return {"self-loops": None, "cycles": None}


def _dangling_subjects(description: Description) -> Subjects:
    return {"targets": None, "chains": None}


def _tensor_subjects(description: Description) -> Subjects:
    reasons = tensor_subjects(description)
    return {kind: reasons[kind] for kind in KINDS}


_PARTS = ("sharing", "sharing.join")

WORKLOADS = [
    Workload("sharing.graphs", _PARTS, _graph_subjects, graphs),
    Workload("sharing.cycles", _PARTS, _cycle_subjects, cycles, weight=0.5),
    Workload("sharing.dangling", _PARTS, _dangling_subjects, dangling, weight=0.5),
    Workload(
        "sharing.tensors",
        ("specs", "tensors", "tensors.allocate", "tensors.read", "tensors.write"),
        _tensor_subjects,
        tensors,
        weight=2.0,
        proof=("tensors.allocate",),
    ),
]
