"""Layers that share the caches of other layers.

Each sharing layer has a target, the layer whose cache it uses. The target may be a sharing layer, too. If you
go from target to target, a legal sharing layer *leads* to a layer that owns a cache. In illegal examples,
some sharing layers lead into a cycle, or to a layer that has no cache.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from kvref_strategies.tensors import draw_layers, layouts_for, tensor_subjects
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

NUMBER = st.one_of(st.integers(1, 4), st.integers(1, 60))
"""The number of sharing layers: often few, sometimes more than any model has."""

A_FEW = st.integers(0, 3)

LONGEST_CYCLE = 8
"""The most layers in a cycle, or in a chain that leads to no cache. An error message can name this many."""

KINDS = ("attention", "other heads", "windows")
"""The families of `tensors` in which layers share caches: with pages of one size, with pages of two sizes,
and with groups that share memory."""

STEPS = 6
"""The most writes in an example."""

Pairs = list[tuple[str, str]]
"""Sharing layers with their targets."""

# Owners are the layers that own a cache. All layers of an example are numbered: first the owners, then the
# sharing layers, and last one layer that neither owns nor shares a cache. `targets` has the number of each
# sharing layer's target. The sharing layers come in the order in which they were drawn.


def _draw_groups(draw: Draw) -> list[list[str]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    return [
        [f"layer.{sum(sizes[:place]) + each}" for each in range(size)] for place, size in enumerate(sizes)
    ]


def _count(groups: list[list[str]]) -> int:
    return sum(map(len, groups))


def _grow(draw: Draw, targets: list[int], number: int, owners: int) -> None:
    """Add sharing layers to `targets`. The target of each is a drawn owner or an earlier sharing layer.

    Each owner is drawn twice as often as each sharing layer.
    """
    for _ in range(number):
        # One drawn number decides a target, because Hypothesis reduces that best.
        drawn = draw(st.integers(0, 2 * owners + len(targets) - 1))
        targets.append(drawn if drawn < owners else drawn - owners)


def _listings(draw: Draw, targets: list[int], owners: int) -> tuple[Pairs, Pairs]:
    """Return the sharing layers with their targets in two orders: as drawn, and as a model may list them.

    A model may list the sharing layers in any order. Their names follow this order.
    """
    numbers = [draw(st.integers(0, len(targets))) for _ in targets]
    order = sorted(range(len(targets)), key=lambda drawn: numbers[drawn])
    place = {drawn: listed for listed, drawn in enumerate(order)}

    def name(number: int) -> str:
        is_owner = number < owners
        return f"layer.{number if is_owner else owners + place.get(number - owners, len(targets))}"

    drawn = [(name(owners + number), name(target)) for number, target in enumerate(targets)]
    return drawn, [drawn[number] for number in order]


def graphs(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Add sharing layers to groups. Each of them leads to a layer that owns a cache.

    First each sharing layer is listed after its target, then the list has any order. Perhaps add the layers
    twice, as an engine with a draft model does.
    """
    groups = _draw_groups(draw)
    owners, number = _count(groups), draw(NUMBER)
    targets: list[int] = []
    if subject == "forests":
        _grow(draw, targets, number, owners)
    else:
        targets.append(draw(st.integers(0, owners - 1)))
        for place in range(1, number):
            # Chains: the target is the latest sharing layer. Trees: it is any of them, or the owner of all.
            earlier = place if subject == "chains" else draw(st.integers(0, place))
            targets.append(owners + earlier - 1 if earlier else targets[0])
    drawn, listed = _listings(draw, targets, owners)
    stage.perform("sharing.join", groups=groups, sharing=drawn, times=1)
    if listed != drawn:
        stage.perform("sharing.join", groups=groups, sharing=listed, times=1)
    if draw(st.booleans()):
        stage.perform("sharing.join", groups=groups, sharing=listed, times=2)


def cycles(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Add sharing layers to groups, some of which form a cycle: each has the next one as its target.

    Other sharing layers lead into the cycle, or share the cache of an owner.
    """
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
    """Add sharing layers to groups. The target of one of them neither owns nor shares a cache.

    Other sharing layers lead to that one, or share the cache of an owner.
    """
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
    """Allocate caches, then repeatedly write a block through one layer and read a block through another.

    If the two layers use the same cache and the two blocks are the same, read only after the write. Otherwise
    also read before the write, so that a law can compare. Block 0 is never used, because no request holds it.
    Perhaps allocate once without the sharing layers before all this.
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
