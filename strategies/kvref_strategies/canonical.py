"""Writes, reads and copies blocks of a cache, through the layers' views and through the canonical view."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvref_strategies.tensors import draw_arguments, draw_layers, tensor_subjects
from kvref_strategies.workload import Description, Draw, Stage, Workload


def rows(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Allocate a cache and make its canonical view. Write, read and perhaps copy a block."""
    layers = draw_layers(draw, stage, description, subject)
    if not layers:
        return
    allocated = stage.perform("tensors.allocate", **draw_arguments(draw, description, layers))
    if "value" not in allocated:
        return
    registered = stage.perform("canonical.register")
    if "value" not in registered:
        return
    num_blocks, names = allocated["value"]["num_blocks"], sorted(allocated["value"]["layers"])
    blocks = st.integers(0, num_blocks - 1)
    tensors = list(range(len(registered["value"]["tensors"])))
    seeds = st.integers(1, 9)

    def written(ways: list[str], block: int) -> None:
        for way in ways:
            if way == "layer":
                stage.perform(
                    "tensors.write", layer=draw(st.sampled_from(names)), block=block, seed=draw(seeds)
                )
            else:
                tensor = draw(st.sampled_from(tensors))
                stage.perform("canonical.write", tensor=tensor, row=block, seed=draw(seeds))

    def read(block: int) -> None:
        for tensor in tensors:
            stage.perform("canonical.read", tensor=tensor, row=block)
        for name in names:
            stage.perform("tensors.read", layer=name, block=block)

    ways = st.lists(st.sampled_from(["layer", "row"] if tensors else ["layer"]), min_size=1, max_size=3)
    block, other = draw(blocks), draw(blocks)
    written(draw(ways), block)
    read(block)
    if other != block and tensors and draw(st.booleans()):
        written(draw(ways), other)
        group = draw(st.integers(0, len(allocated["value"]["groups"]) - 1))
        copied: dict[str, Any] = {"group": group, "source": block, "destination": other}
        read(other)
        stage.perform("canonical.copy", **copied)
        read(block)
        read(other)


WORKLOADS = [
    Workload(
        "canonical.rows",
        ("specs", "tensors", "canonical"),
        tensor_subjects,
        rows,
        weight=0.5,
        unobserved="the target did not allocate these layers, or nothing that the law is about",
        proof=("tensors.allocate",),
    ),
]
