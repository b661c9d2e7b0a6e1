"""Replaces stock spec classes with a platform's own, and plans for layers that have stock specs."""

from __future__ import annotations

from hypothesis import strategies as st

from kvref_strategies.registrations import ClassTree
from kvref_strategies.specs import class_info, descriptors
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

PLATFORM = ("PlatformSpec", "NextPlatformSpec")
"""The platform's classes. The first derives from a drawn stock class, the second from the first."""


def substitutes(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Plan for layers before their class gets a substitute, while it has one, and after it has lost it.

    Perhaps the substitute gets a substitute, too. Perhaps try to close a loop of substitutes, which the
    target should refuse.
    """
    stage.perform("registry.initialise")
    own = draw(st.sampled_from([info["name"] for info in ClassTree(description).stock]))
    spec = draw(descriptors(class_info(description, own)))
    entry = stage.perform("registry.lookup", spec=spec).get("value")
    if "value" not in stage.perform("specs.build", spec=spec) or not entry or entry["manager"] is None:
        return
    chain = [own]
    for name in PLATFORM:
        fields = draw(st.sampled_from([{}, {"platform_field": 1}]))
        stage.perform("specs.derive", name=name, base=chain[-1], fields=fields)
        stage.perform("registry.register", spec_class=name, manager=entry["manager"], base=None)
        chain.append(name)
    layers = {f"layer.{place}": spec for place in range(draw(st.integers(1, 2)))}
    steps: list[tuple[str, str | None]] = [(chain[0], chain[1])]
    if draw(st.booleans()):
        steps.append((chain[1], chain[2]))
    done = list(steps)
    if draw(st.booleans()):
        steps.append((chain[len(done)], draw(st.sampled_from(chain[: len(done)]))))
    # The substitutions are undone in any order: those that remain must still work.
    steps += [(old, None) for old, _ in draw(st.permutations(done))]
    stage.perform("planner.groups", layers=layers)
    for old, new in steps:
        stage.perform("registry.substitute", spec_class=old, substitute=new)
        stage.perform("planner.groups", layers=layers)


def _one_subject(description: Description) -> Subjects:
    return {"registry": None}


WORKLOADS = [
    Workload(
        "registry.substitutes",
        ("specs", "specs.derive", "registry", "registry.substitute", "planner"),
        _one_subject,
        substitutes,
        isolated=True,
        weight=0.4,
    )
]
