"""What an engine does at start: plan for its workers, resolve block sizes, make a cache manager, report."""

from __future__ import annotations

from hypothesis import strategies as st

from kvref.target import SpecDescriptor
from kvref_strategies.models import LIMITS, draw_model, families
from kvref_strategies.specs import class_info, descriptors, spec_subjects
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

BARE = "a stage without layers"
"""A subject: pipelines with an extra stage in which no layer has a cache.

Models with attention in only a few layers can have stages like this.
"""


def workers(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Plan for all workers of a pipeline. Each stage has one or two ranks, and each rank has its own memory.

    Before that, group the layers of the whole model, and plan for each worker by itself.
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
    # The layers in the order of the workers.
    stage.perform("planner.groups", layers={name: spec for part in parts for name, spec in part.items()})
    for worker in everyone:
        if worker["layers"]:
            stage.perform("planner.config", **worker, **LIMITS)
    stage.perform("planner.workers", workers=everyone, **LIMITS)


def _stages(description: Description) -> Subjects:
    return {**families(description), BARE: families(description)["full attention"]}


def sizes(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Resolve the block sizes of a model, and make a cache manager with these sizes.

    With prefix caching, also try to make a cache manager with drawn sizes. If these do not fit together, the
    target should refuse them.
    """
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
    """Make a cache manager for a model of one layer, first with prefix caching. If that fails, without it."""
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
    """Resolve the block sizes of a layer, and make a cache manager with them. Return whether that worked."""
    arguments = {"layers": {"layer.0": spec}, "enable_caching": caching}
    resolved = stage.perform("planner.block_sizes", **arguments)
    if "value" not in resolved:
        return False
    both = {name: resolved["value"][name] for name in ("scheduler_block_size", "hash_block_size")}
    return "value" in stage.perform("planner.construct", **arguments, **both)


def can_cache(description: Description, specs: list[SpecDescriptor]) -> bool:
    """Whether an engine can use prefix caching with these specs.

    An engine cannot cache prefixes with cross attention, or with recurrent layers in the cache mode "none".
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
    """Ask for the capacity of a plan, with its groups in order and in reverse.

    Then plan with just enough memory for one request. If the target refused to report the capacity, plan with
    the original memory instead: perhaps the target refuses the plan, too.
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
    # Isolated, because a target may log some lines only once in a process.
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
