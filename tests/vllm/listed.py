"""Recognises the differences of docs/differences.toml in the answers of the reference and vLLM.

A predicate judges one deviation: an operation with both answers. It matches as few other deviations as
possible. A deviation that matches no predicate is not listed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep import Deviation

FORGETFUL = {"SlidingWindowSpec", "SlidingWindowMLASpec", "ChunkedLocalAttentionSpec", "MambaSpec"}
"""Spec classes whose layers do not keep all tokens."""

COUNTS = ("needed", "taken", "added", "room", "refused", "tables", "free_count")
"""Facets that show that one of the two takes or wants more blocks."""


def _fields(deviation: Deviation) -> list[dict[str, Any]]:
    return [group["spec"]["fields"] for group in deviation.setup.groups] if deviation.setup else []


def _found(deviation: Deviation) -> int:
    return (deviation.arguments.get("hit") or {"tokens": 0})["tokens"]


def _loads(deviation: Deviation) -> bool:
    return deviation.operation == "allocate" and deviation.arguments.get("external", 0) > 0


def _loads_all(deviation: Deviation) -> bool:
    loaded = _found(deviation) + deviation.arguments.get("external", 0)
    return _loads(deviation) and deviation.request is not None and loaded == deviation.request.tokens


def _more_keys(deviation: Deviation) -> bool:
    """Whether vLLM gives more keys than the reference."""
    if deviation.facet != "keys":
        return False
    one, other = deviation.ours, deviation.theirs
    if isinstance(one, dict):
        return len(*one.values()) < len(*other.values())
    return sum(one) < sum(other)


def loaded_not_returned(deviation: Deviation) -> bool:
    if deviation.facet != "added" or not _loads(deviation):
        return False
    pairs = zip(deviation.ours, deviation.theirs, strict=True)
    return all(one[len(one) - len(other) :] == other for one, other in pairs)


def window_of_the_last_token(deviation: Deviation) -> bool:
    return deviation.facet in COUNTS and _loads_all(deviation) and bool(deviation.kinds & FORGETFUL)


def loaded_state_not_counted(deviation: Deviation) -> bool:
    if not _loads(deviation) or "MambaSpec" not in deviation.kinds:
        return False
    too_many = _found(deviation) > 0
    match deviation.facet:
        case "needed":
            return bool(deviation.ours > deviation.theirs or too_many)
        case "room":
            return bool(not deviation.ours or too_many)
        case "refused":
            return deviation.ours is None and "free blocks" in deviation.theirs["message"]
    return False


def cap_less_what_is_found(deviation: Deviation) -> bool:
    capped = deviation.kinds & (FORGETFUL - {"MambaSpec"})
    asked = deviation.arguments.get("whole") and (_found(deviation) > 0 or _loads(deviation))
    return deviation.facet == "room" and not deviation.ours and bool(asked and capped)


def key_given_again(deviation: Deviation) -> bool:
    hit = deviation.arguments.get("hit")
    return (
        deviation.facet == "room"
        and deviation.ours
        and deviation.setup is not None
        and deviation.setup.align is not None
        and hit is not None
        and any(hit["blocks"])
    )


def partial_keys(deviation: Deviation) -> bool:
    setup = deviation.setup
    if setup is None or all(fields["block_size"] == setup.hash_block_size for fields in _fields(deviation)):
        return False
    if deviation.facet == "alignment":
        return bool(deviation.theirs == setup.hash_block_size)
    return _more_keys(deviation)


def keys_of_whole_chunks(deviation: Deviation) -> bool:
    chunked = deviation.kinds == {"ChunkedLocalAttentionSpec"} and deviation.setup is not None
    as_long = chunked and {fields["block_size"] for fields in _fields(deviation)} == {
        deviation.setup.scheduler_block_size
    }
    return as_long and _more_keys(deviation)


def key_by_position(deviation: Deviation) -> bool:
    return deviation.setup is not None and deviation.setup.align is not None and _more_keys(deviation)


def duplicates_announced(deviation: Deviation) -> bool:
    if deviation.facet != "events":
        return False
    one, other = deviation.ours, deviation.theirs
    more = all(other.get(what, 0) >= one.get(what, 0) for what in ("stored", "removed"))
    return more and one.get("cleared") == other.get("cleared")


def common_prefix(deviation: Deviation) -> bool:
    return deviation.operation == "common_prefix" and not any(deviation.theirs)


def new_ids_of_some(deviation: Deviation) -> bool:
    if deviation.operation == "take_new_block_ids":
        return deviation.ours > deviation.theirs
    return deviation.facet == "reports_new" and all(deviation.ours)


def sinks_not_made(deviation: Deviation) -> bool:
    classes = [group["spec"]["class"] for group in deviation.setup.groups] if deviation.setup else []
    return (
        deviation.operation == "create"
        and deviation.facet == "refused"
        and "SinkFullAttentionSpec" in classes
        and deviation.theirs["type"] == "TypeError"
    )


def fewer_than_none(deviation: Deviation) -> bool:
    fewer = deviation.facet == "needed" and deviation.theirs < deviation.ours
    return fewer and "MambaSpec" in deviation.kinds and not _found(deviation) and not _loads(deviation)


def states_without_cap(deviation: Deviation) -> bool:
    if deviation.facet == "room":
        return (
            "MambaSpec" in deviation.kinds and deviation.arguments.get("whole", False) and not deviation.ours
        )
    if deviation.facet != "caps" or deviation.setup is None:
        return False
    pairs = zip(deviation.setup.groups, deviation.ours, deviation.theirs, strict=True)
    return all(
        one == other or (group.get("kind") == "MambaSpec" and other is None) for group, one, other in pairs
    )


def lookahead(deviation: Deviation) -> bool:
    eagle = deviation.setup is not None and deviation.setup.use_eagle
    return eagle and deviation.facet == "tokens" and deviation.theirs < deviation.ours


def _shared(deviation: Deviation) -> list[list[str]]:
    """Groups in vLLM's plan that the reference's plan does not have."""
    if deviation.facet != "plan":
        return []
    return [group for group in deviation.theirs["groups"] if group not in deviation.ours["groups"]]


def _classes(deviation: Deviation) -> dict[str, str]:
    return {name: spec["class"] for name, spec in deviation.arguments.get("layers", {}).items()}


def windows_as_full(deviation: Deviation) -> bool:
    classes = _classes(deviation)
    together = any(
        {"MLAAttentionSpec", "SlidingWindowSpec"} <= {classes[name] for name in group}
        for group in _shared(deviation)
    )
    return together and {*deviation.theirs["managers"].values()} == {"FullAttentionManager"}


def several_managers(deviation: Deviation) -> bool:
    managers = deviation.ours["managers"] if deviation.facet == "plan" else {}
    known = [{managers[name] for name in group if name in managers} for group in _shared(deviation)]
    return any(len(each) > 1 for each in known)


def several_classes(deviation: Deviation) -> bool:
    classes = _classes(deviation)
    return any(len({classes[name] for name in group}) > 1 for group in _shared(deviation))


def hidden_states_last(deviation: Deviation) -> bool:
    return deviation.facet == "plan" and {"HiddenStateCacheSpec"} < {*_classes(deviation).values()}


def padded_first(deviation: Deviation) -> bool:
    if deviation.facet != "plan":
        return False
    rest = [{**each, "block_sizes": None} for each in (deviation.ours, deviation.theirs)]
    sizes = [each["block_sizes"] for each in (deviation.ours, deviation.theirs)]
    return rest[0] == rest[1] and all(size >= sizes[1][name] for name, size in sizes[0].items())


CACHE: dict[str, Callable[[Deviation], bool]] = {
    "loaded-not-returned": loaded_not_returned,
    "loaded-state": loaded_state_not_counted,
    "window-of-the-last-token": window_of_the_last_token,
    "admission-cap": cap_less_what_is_found,
    "state-key-again": key_given_again,
    "partial-keys": partial_keys,
    "chunk-keys": keys_of_whole_chunks,
    "state-key": key_by_position,
    "event-duplicates": duplicates_announced,
    "common-prefix": common_prefix,
    "new-block-ids": new_ids_of_some,
    "sinks": sinks_not_made,
    "negative-need": fewer_than_none,
    "state-cap": states_without_cap,
    "lookahead": lookahead,
}
"""The differences that caches show, by id. If several predicates match a deviation, the first one counts."""

PLANS: dict[str, Callable[[Deviation], bool]] = {
    "full-fallback": windows_as_full,
    "one-manager": several_managers,
    "plan-order": several_classes,
    "hidden-states": hidden_states_last,
    "padding": padded_first,
}
"""The differences that plans show, by id."""


def listed(deviation: Deviation) -> str | None:
    """The id of the difference that explains the deviation, or None."""
    known = CACHE if deviation.setup else PLANS
    return next((name for name, is_so in known.items() if is_so(deviation)), None)
