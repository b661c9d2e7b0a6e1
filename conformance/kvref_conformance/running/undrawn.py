"""Find out which inputs no example of a run had, although kvref can draw them for the target.

An input has an entry, which the code calls a key: see `exploring/inputs.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from kvref_conformance.laws.subjects import is_kept
from kvref_conformance.running.exploring.inputs import (
    ALONE,
    CONTENTS,
    ENGINE,
    OPERATIONS,
    OWN_SIZES,
    POOL,
    ends,
)
from kvref_strategies.specs import judged, menu
from kvref_strategies.workload import Description


def undrawn(description: Description, seen: Collection[str]) -> list[str]:
    """The entries of inputs that were never drawn.

    If no example called an operation of a group, the group has no entries. If a class took part in no
    operation of a group, one entry stands for all fields of the class.
    """
    called = {key.partition(":")[0] for key in seen}
    return [key for key in _possible(description, called, seen) if key not in seen]


def _possible(description: Description, called: Collection[str], seen: Collection[str]) -> Iterator[str]:
    classes = judged(description)
    for group in OPERATIONS:
        if group not in called:
            continue
        taking = [info for info in classes if f"{group}: {info['name']}" in seen]
        for info in classes:
            yield f"{group}: {info['name']}"
            if info not in taking:
                continue
            for field in info["fields"]:
                if is_kept(info, field):
                    continue
                yield f"{group}: {info['name']}.{field['name']}"
                if ends(menu(info, field["name"])) and group not in OWN_SIZES:
                    yield f"{group}: {info['name']}.{field['name']} lowest"
                    yield f"{group}: {info['name']}.{field['name']} highest"
            if group not in ALONE:
                yield from (f"{group}: {info['name']} beside {other['name']}" for other in taking)
    yield from _named("content", _of_contents(description), called)
    yield from _named("pool", POOL, called)
    yield from _named("engine", ENGINE, called)


def _of_contents(description: Description) -> Iterator[str]:
    taken = description["capabilities"].get("contents") or ()
    return (what for what, kinds in CONTENTS.items() if all(kind in taken for kind in kinds))


def _named(group: str, whats: Iterable[str], called: Collection[str]) -> Iterator[str]:
    return (f"{group}: {what}" for what in whats) if group in called else iter(())


def is_pair(key: str) -> bool:
    """Whether the entry is about neither an end of a menu nor two classes in one operation."""
    return not (
        key.endswith((" lowest", " highest")) or (" beside " in key and not key.startswith("content:"))
    )
