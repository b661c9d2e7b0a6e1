"""What an engine makes of a model: workers that share it, block sizes, a cache manager, what is reported."""

from __future__ import annotations

from hypothesis import strategies as st

from kvref.target import SpecDescriptor
from kvref_strategies.models import LIMITS, draw_model, families
from kvref_strategies.specs import class_info, descriptors, spec_subjects
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

BARE = "a stage without layers"
"""Of a pipeline: none of the layers there has a cache, as in models that leave attention out of many."""


def workers(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Plan for the stages of a pipeline, each on one rank or two, every rank with memory of its own.

    Before that, plan for each of them alone, and group the layers of all.
    """
    stages = draw(st.sampled_from([1, 2, 3]))
    family = "full attention" if subject == BARE else subject
    model = draw_model(draw, stage, description, family, stages)
    if model is None:
        return
    parts = [{n: s for n, s in model.layers.items() if model.numbers[n] == part} for part in range(stages)]
    parts = [part for part in parts if part] + [{}] * (subject == BARE)
    ranks = 2 if len(parts) == 1 else draw(st.sampled_from([1, 2]))
    everyone = [{"layers": part, "memory": model.memory(draw)} for part in parts for _ in range(ranks)]
    # In the order in which the workers have them.
    stage.perform("planner.groups", layers={name: spec for part in parts for name, spec in part.items()})
    for worker in everyone:
        if worker["layers"]:
            stage.perform("planner.config", **worker, **LIMITS)
    stage.perform("planner.workers", workers=everyone, **LIMITS)


def _stages(description: Description) -> Subjects:
    return {**families(description), BARE: families(description)["full attention"]}


def sizes(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Resolve the block sizes of a model, make a cache manager with them, and one with others."""
    model = draw_model(draw, stage, description, subject, 1)
    if model is None:
        return
    caching = can_cache(description, list(model.layers.values())) and draw(st.booleans())
    arguments = {"layers": model.layers, "enable_caching": caching}
    resolved = stage.perform("planner.block_sizes", **arguments)
    if "value" not in resolved:
        return
    scheduler, hashed = (resolved["value"][f"{name}_block_size"] for name in ("scheduler", "hash"))
    stage.perform("planner.construct", **arguments, scheduler_block_size=scheduler, hash_block_size=hashed)
    if caching:
        used = sorted(
            {
                layer["spec"]["fields"]["block_size"]
                for g in resolved["value"]["groups"]
                for layer in g["layers"]
            }
        )
        others = [*used, scheduler + hashed, 2 * scheduler, hashed, scheduler + 1]
        stage.perform(
            "planner.construct",
            **arguments,
            scheduler_block_size=draw(st.sampled_from(others)),
            hash_block_size=draw(st.sampled_from([hashed, *used, 2 * hashed])),
        )


def managers(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Make a cache manager for a model of one layer, with caching or else without."""
    stage.perform("registry.initialise")
    spec = draw(descriptors(class_info(description, subject)))
    if "value" not in stage.perform("specs.build", spec=spec):
        return
    entry = stage.perform("registry.lookup", spec=spec).get("value")
    if not entry or entry["manager"] is None:
        return
    for caching in (True, False) if can_cache(description, [spec]) else (False,):
        if make_manager(stage, spec, caching):
            return


def make_manager(stage: Stage, spec: SpecDescriptor, caching: bool) -> bool:
    """Make a cache manager for a layer with the block sizes that are resolved for it; says whether it was."""
    arguments = {"layers": {"layer.0": spec}, "enable_caching": caching}
    resolved = stage.perform("planner.block_sizes", **arguments)
    if "value" not in resolved:
        return False
    both = {name: resolved["value"][name] for name in ("scheduler_block_size", "hash_block_size")}
    return "value" in stage.perform("planner.construct", **arguments, **both)


def can_cache(description: Description, specs: list[SpecDescriptor]) -> bool:
    """Whether an engine may have prefix caching on for layers with these specs.

    Not with cross attention, nor with recurrent states that are kept for nobody.
    """
    known = {info["name"]: info["mro"] for info in description["classes"]}
    return not any(
        "CrossAttentionSpec" in known.get(spec["class"], ())
        or (
            "MambaSpec" in known.get(spec["class"], ())
            and spec["fields"].get("mamba_cache_mode", "none") == "none"
        )
        for spec in specs
    )


def capacity(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Ask what a plan amounts to, with its groups in either order; then plan for what one request takes.

    Where that is not told, plan for the same memory: there may be no plan either.
    """
    model = draw_model(draw, stage, description, subject, 1)
    if model is None:
        return
    memory = model.memory(draw)
    for backwards in (False, True):
        answer = stage.perform(
            "planner.capacity", layers=model.layers, memory=memory, backwards=backwards, **LIMITS
        )
    if "value" in answer:
        plan = answer["value"]
        memory = -(-memory // plan["num_blocks"]) * (sum(plan["blocks_per_request"]) + 1)
    stage.perform("planner.config", layers=model.layers, memory=memory, **LIMITS)


_PARTS = ("specs", "specs.derive", "planner")
_SIZES = ("planner.block_sizes", "planner.construct")

WORKLOADS = [
    Workload("deployments.workers", (*_PARTS, "planner.workers"), _stages, workers, weight=0.2),
    # In processes of their own, since some lines are logged once in a process.
    Workload("deployments.sizes", (*_PARTS, *_SIZES), families, sizes, isolated=True, weight=0.1),
    Workload(
        "deployments.managers",
        (*_PARTS, "registry", *_SIZES),
        spec_subjects,
        managers,
        weight=0.2,
        unobserved="no manager is registered for it",
    ),
    Workload("deployments.capacity", (*_PARTS, "planner.capacity"), families, capacity, weight=0.2),
]
