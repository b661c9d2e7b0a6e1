"""Tell operations and what they answered in the reader's terms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvref_conformance.documents.results import Row

Labels = Mapping[str, str]
"""What to call a spec that was built before, by its `_key`."""

_LONGEST_LIST = 8
_LONGEST_BYTES = 64
"""Hexadecimal digits of the bytes of a block; hashes have no more."""


def describe_operation(op: Mapping[str, Any], labels: Labels | None = None) -> str:
    """One operation of a trace: `merge [FullAttentionSpec(block_size=16), the same]`."""
    labels = labels or {}
    match op:
        case {"op": "specs.build", "args": {"spec": spec}}:
            return f"build {_value(spec)}"
        case {"op": "specs.copy", "args": {"spec": spec, "block_size": size}}:
            return f"copy {_spec(spec, labels)} with block_size={_value(size)}"
        case {"op": "specs.merge", "args": {"specs": [*specs]}}:
            return f"merge [{', '.join(_operands(specs, labels))}]"
        case {"op": "specs.derive", "args": {"name": str(name), "base": base, "fields": dict() as fields}}:
            return f"class {name}({base})" + (f" with {_mapping(fields, '=')}" if fields else "")
        case {"op": "specs.twins", "args": {"spec": spec}}:
            return f"compare {_spec(spec, labels)} with another built alike"
        case {"op": "specs.mutable_fields", "args": {"spec": spec}}:
            return f"try to change each field of {_spec(spec, labels)}"
        case {"op": "specs.pickled", "args": {"spec": spec}}:
            return f"pickle {_spec(spec, labels)}"
        case {"op": "specs.unpickled", "args": {"spec": spec}}:
            return f"unpickle it, and compare it with {_spec(spec, labels)}"
        case {"op": "specs.uniform" | "registry.uniform", "args": {"specs": [*specs]}}:
            return f"are they uniform: [{', '.join(_operands(specs, labels))}]"
        case {"op": "specs.max_memory", "args": {"spec": spec, **limits}}:
            told = _mapping({str(name): value for name, value in limits.items()}, "=")
            return f"maximum memory of {_spec(spec, labels)} with {told}"
        case {"op": "registry.define_spec", "args": {"name": str(name), "bases": [*bases]}}:
            return f"class {name}({', '.join(map(str, bases))})"
        case {"op": "registry.define_manager", "args": {"name": str(name), "base": base}}:
            return f"class {name}({base})"
        case {"op": "registry.initialise"}:
            return "initialise the registry, as an engine does at start"
        case {"op": "registry.install_hook", "args": {"registrations": [*registrations]}}:
            listed = "; ".join(map(_registration, registrations)) or "nothing"
            return f"install a platform hook that registers {listed}"
        case {"op": "registry.register", "args": {"spec_class": _} as registration}:
            return f"register {_registration(registration)}"
        case {"op": "registry.decorate", "args": {"spec_class": _} as registration}:
            return f"register {_registration(registration)} with the decorator"
        case {"op": "registry.lookup", "args": {"spec": spec}}:
            return f"look up {_spec(spec, labels)}"
        case {"op": "registry.table"}:
            return "look up every spec class"
        case {"op": "registry.check", "args": {"layers": dict() as layers}}:
            return f"check that the layers {_mapping(layers, ': ', labels)} are registered"
        case {"op": "hashing.block_hashes", "args": {"content": dict() as content, "hash_block_size": size}}:
            return f"hash every {_value(size)} tokens of a request with {_content(content)}"
        case {"op": "hashing.keys", "args": {"content": dict() as content, "block_size": size, **rest}}:
            told = f"hashed every {_value(rest.get('hash_block_size'))}, with {_content(content)}"
            return f"the keys of blocks of {_value(size)} tokens of a request, {told}"
        case {"op": "planner.groups", "args": {"layers": dict() as layers}}:
            return f"group the layers {_mapping(layers, ': ', labels)}"
        case {"op": "planner.one_group", "args": {"layers": dict() as layers}}:
            return f"put the layers {_mapping(layers, ': ', labels)} into one group"
        case {"op": "planner.config", "args": {"layers": dict() as layers, **limits}}:
            told = _mapping({str(name): value for name, value in limits.items()}, "=")
            return f"plan the layers {_mapping(layers, ': ', labels)} with {told}"
        case {"op": "planner.workers", "args": {"workers": [*workers], **limits}}:
            shares = "; ".join(
                f"{_mapping(worker['layers'], ': ', labels) or 'no layers'} with memory={worker['memory']}"
                for worker in workers
            )
            told = _mapping({str(name): value for name, value in limits.items()}, "=")
            return f"plan for workers that have {shares}; with {told}"
        case {
            "op": "planner.block_sizes" | "planner.construct" as operation,
            "args": {"layers": dict() as layers, "enable_caching": caching, **both},
        }:
            told = f"the layers {_mapping(layers, ': ', labels)}, caching {'on' if caching else 'off'}"
            if operation == "planner.block_sizes":
                return f"resolve the block sizes of {told}"
            sizes = _mapping({str(name): value for name, value in both.items()}, "=")
            return f"make a cache manager for {told}, with {sizes}"
        case {"op": "planner.capacity", "args": {"layers": dict() as layers, "backwards": back, **limits}}:
            told = _mapping({str(name): value for name, value in limits.items()}, "=")
            order = ", its groups listed backwards" if back else ""
            return f"report the capacity of a plan of {_mapping(layers, ': ', labels)} with {told}{order}"
        case {"op": "tensors.allocate", "args": {"layers": dict() as layers, "sharing": [*pairs], **rest}}:
            told = _mapping({str(name): value for name, value in rest.items() if value is not None}, "=")
            shared = f"; {_sharing(pairs)}" if pairs else ""
            return f"allocate the layers {_mapping(layers, ': ', labels)} with {told}{shared}"
        case {"op": "sharing.join", "args": {"groups": [*groups], "sharing": [*pairs], "times": times}}:
            often = "once" if times == 1 else f"{_value(times)} times"
            return f"let layers join the groups {_value(groups)}, {often}: {_sharing(pairs) or 'none'}"
        case {"op": "registry.substitute", "args": {"spec_class": old, "substitute": new}}:
            return f"put {new} in the place of {old}" if new else f"undo what stands in the place of {old}"
        case {"op": str(operation), "args": dict() as arguments} if operation.startswith("pool."):
            return _describe_pool(operation.removeprefix("pool."), arguments)
        case {"op": operation, "args": dict() as arguments}:
            return f"{operation}({_mapping(arguments, '=', labels)})"
    return repr(op)


def _sharing(pairs: Sequence[Sequence[str]]) -> str:
    return ", ".join(f"{pair[0]} shares with {pair[-1]}" for pair in pairs)


def _describe_pool(operation: str, arguments: Mapping[str, Any]) -> str:
    match operation, arguments:
        case "create", {"num_blocks": number, "enable_caching": caching, "block_size": size, **rest}:
            hashed = f"hashed every {rest.get('hash_block_size')}" if caching else "caching off"
            return f"create a pool of {_value(number)} blocks of {_value(size)} tokens, {hashed}"
        case "get_new_blocks", {"num_blocks": number}:
            return f"take {_value(number)} new blocks"
        case "touch" | "free" | "evict", {"blocks": blocks}:
            return f"{operation} the blocks {_value(blocks)}"
        case "cache", {"tokens": tokens, "blocks": [*blocks], "start": int(start), "group": group}:
            behind = f" behind {_value(blocks[:start])}" if start else ""
            named = f"give keys to the blocks {_value(blocks[start:])}{behind}"
            return f"{named} for the tokens {_value(tokens)} in group {_value(group)}"
        case "cache_partial", {"tokens": tokens, "block": block, "group": group}:
            return (
                f"give block {_value(block)} a key for the tokens {_value(tokens)} in group {_value(group)}"
            )
        case "lookup", {"tokens": tokens, "groups": groups}:
            return f"look for the tokens {_value(tokens)} in the groups {_value(groups)}"
        case "reset", _:
            return "reset the prefix cache"
        case "usage", _:
            return "ask how much is used"
        case "state", _:
            return "probe the pool"
    return f"pool.{operation}({_mapping(arguments, '=')})"


def describe_outcome(outcome: Mapping[str, Any]) -> str:
    """What an operation answered: a value in short, an exception, or the end of its process."""
    match outcome:
        case {"value": None}:
            return "done"
        case {"value": value}:
            return _value(value)
        case {"error": {"type": kind, "message": message}}:
            return f"raises {kind}: {message}" if message else f"raises {kind}"
        case {"died": how}:
            return f"the process died: {how}"
    return repr(outcome)


def remark(row: Row) -> str:
    """What the message of a row says beyond what was expected and observed."""
    return row.message.replace(f"expected {row.expected}; observed {row.observed}", "").strip(" :;")


def narrate(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The runs of a trace line by line, each process under a heading where it is not just the one.

    Operations that carry their `outcome`, as events do, are told with it.
    """
    for run in runs:
        flags = " ".join(run["flags"])
        if flags or len(runs) > 1:
            yield f"in a fresh process, python {flags}".rstrip() + ":"
        yield from _narrate_run(run["operations"])


def _narrate_run(operations: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    built: dict[str, str] = {}
    several = len({_key(op["args"].get("spec")) for op in operations if op["op"] == "specs.build"}) > 1
    for op in operations:
        if op["op"] == "pool.state" and "outcome" not in op:
            continue  # says nothing, and there is one behind each operation
        line = describe_operation(op, built)
        if op["op"] == "specs.build":
            label = built.setdefault(
                _key(op["args"].get("spec")), f"s{len(built) + 1}" if several else "that"
            )
            line += f" as {label}" if several else ""
        if "outcome" in op and not (op["op"] == "specs.build" and "value" in op["outcome"]):
            line += f"  -> {describe_outcome(op['outcome'])}"
        yield line


def _key(spec: object) -> str:
    return json.dumps(spec, sort_keys=True, default=repr)


def _operands(specs: Sequence[Any], labels: Labels) -> Iterator[str]:
    previous = None
    for spec in specs:
        yield "the same" if spec == previous and _key(spec) not in labels else _spec(spec, labels)
        previous = spec


def _spec(spec: object, labels: Labels) -> str:
    return labels.get(_key(spec)) or _value(spec)


def _registration(registration: Mapping[str, Any]) -> str:
    """One registration; a base of None is the class itself and goes without saying."""
    base = registration.get("base")
    told = f"{registration.get('spec_class')} -> {registration.get('manager')}"
    return f"{told} (base {base})" if base else told


def _group(group: Mapping[str, Any]) -> str:
    """A planned group; layers with the same spec in a row are told as one."""
    told: list[tuple[str, list[str]]] = []
    for layer in group["layers"]:
        spec = layer["spec"]
        size, page = spec["fields"].get("block_size"), spec["page_size_bytes"]
        shown = f"{spec['class']}, block_size={size}, {page} bytes a page"
        if not told or told[-1][0] != shown:
            told.append((shown, []))
        told[-1][1].append(layer["name"])
    layers = ", ".join(f"{' '.join(names)} as {shown}" for shown, names in told)
    return f"({layers}, for {group['manager']})"


def _mapping(items: Mapping[str, Any], joint: str, labels: Labels | None = None) -> str:
    return ", ".join(f"{key}{joint}{_spec(value, labels or {})}" for key, value in items.items())


def _content(content: Mapping[str, Any]) -> str:
    """What a request consists of: all of its tokens, since which of them differs may be the point."""
    tokens = f"tokens {content.get('tokens')!r}"
    return ", ".join([tokens, *(f"{name} {value!r}" for name, value in content.items() if name != "tokens")])


def _value(value: Any) -> str:
    """Plain data (see `kvref.target`) the way Python code would name it."""
    match value:
        case str():
            if len(value) > _LONGEST_BYTES and re.fullmatch("[0-9a-f]+", value):
                return f"{value[:_LONGEST_BYTES]}... ({len(value) // 2} bytes)"
            return value.removeprefix("torch.") if value.startswith("torch.") else repr(value)
        case {"buffers": buffers, "groups": groups, "layers": dict()}:
            return f"allocations of {_value(buffers)} bytes, layers in groups {_value(groups)}"
        case {"tensors": [*tensors], "groups": [*groups]} if "num_blocks" not in value:
            shapes = [tensor["shape"] for tensor in tensors]
            refs = [[ref["tensor"] for ref in group] for group in groups]
            return f"tensors of shape {_value(shapes)}, those of each group {_value(refs)}"
        case {"groups": [*groups]} if all(isinstance(group, dict) for group in groups):
            blocks = f", {value['num_blocks']} blocks" if "num_blocks" in value else ""
            if "scheduler_block_size" in value:
                both = f"{value['scheduler_block_size']}, hashed every {value['hash_block_size']}"
                blocks = f", scheduler blocks of {both}; said: {'; '.join(value['said']) or 'nothing'}"
            return f"{'; '.join(map(_group, groups)) or 'no groups'}{blocks}"
        case {"class": str(name), "fields": dict() as fields}:
            size = value.get("page_size_bytes")
            return f"{name}({_mapping(fields, '=')})" + (f", {size} bytes a page" if size is not None else "")
        case {"enum": enum, "name": name, **rest} if not rest:
            return f"{enum}.{name}"
        case {"fraction": [numerator, denominator], **rest} if not rest:
            return f"{numerator}/{denominator}"
        case {"opaque": shown, **rest} if not rest:
            return str(shown)
        case {"manager": None, "base": None, **rest} if not rest:
            return "not registered"
        case {"manager": manager, "base": base, **rest} if not rest:
            return f"manager {manager}, base {base}"
        case dict() as items:
            return f"{{{_mapping(items, ': ')}}}"
        case list():
            shown = [_value(item) for item in value[:_LONGEST_LIST]]
            if len(value) > _LONGEST_LIST:
                shown.append(f"... {len(value) - _LONGEST_LIST} more")
            return f"[{', '.join(shown)}]"
    return repr(value)
