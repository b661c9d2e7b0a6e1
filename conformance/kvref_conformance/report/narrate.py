"""Describe operations and their answers in sentences, for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvref_conformance.documents.results import Row

PROBES = ("cache.state", "pool.state")
"""Operations that only read the whole state. Workloads perform one after most other operations."""

Labels = Mapping[str, str]
"""For specs that an earlier operation built: short names, by `_key` of the spec."""

_LONGEST_LIST = 8
_LONGEST_BYTES = 64
"""At most this many hexadecimal digits of a byte string are shown. Hashes are not longer."""


def describe_operation(op: Mapping[str, Any], labels: Labels | None = None) -> str:
    """Describe one operation, for example `merge [FullAttentionSpec(block_size=16), the same]`."""
    labels = labels or {}
    match op:
        case {"op": "specs.build", "args": {"spec": spec}}:
            return f"build {_value(spec)}"
        case {"op": "specs.copy", "args": {"spec": spec, "block_size": size}}:
            return f"copy {_spec(spec, labels)} with block_size={_value(size)}"
        case {"op": "specs.merge", "args": {"specs": [*specs]}}:
            return f"merge [{', '.join(_operands(specs, labels))}]"
        case {"op": "specs.derive", "args": {"name": str(name), "base": base, "fields": dict() as fields}}:
            return f"define class {name}({base})" + (f" with {_mapping(fields, '=')}" if fields else "")
        case {"op": "specs.twins", "args": {"spec": spec}}:
            return f"compare {_spec(spec, labels)} with a second one built the same way"
        case {"op": "specs.mutable_fields", "args": {"spec": spec}}:
            return f"try to change each field of {_spec(spec, labels)}"
        case {"op": "specs.pickled", "args": {"spec": spec}}:
            return f"pickle {_spec(spec, labels)}"
        case {"op": "specs.unpickled", "args": {"spec": spec}}:
            return f"unpickle it and compare it with {_spec(spec, labels)}"
        case {"op": "specs.uniform" | "registry.uniform", "args": {"specs": [*specs]}}:
            return f"check whether these are uniform: [{', '.join(_operands(specs, labels))}]"
        case {"op": "specs.max_memory", "args": {"spec": spec, **limits}}:
            return f"compute the maximum memory of {_spec(spec, labels)} with {_mapping(limits, '=')}"
        case {"op": "registry.define_spec", "args": {"name": str(name), "bases": [*bases]}}:
            return f"define class {name}({', '.join(map(str, bases))})"
        case {"op": "registry.define_manager", "args": {"name": str(name), "base": base}}:
            return f"define class {name}({base})"
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
            hashed = f"hashed every {_value(rest.get('hash_block_size'))} tokens"
            blocks = f"blocks of {_value(size)} tokens of a request, {hashed}"
            return f"compute the keys of {blocks}, with {_content(content)}"
        case {"op": "planner.groups", "args": {"layers": dict() as layers}}:
            return f"group the layers {_mapping(layers, ': ', labels)}"
        case {"op": "planner.one_group", "args": {"layers": dict() as layers}}:
            return f"put the layers {_mapping(layers, ': ', labels)} into one group"
        case {"op": "planner.config", "args": {"layers": dict() as layers, **limits}}:
            return f"plan the layers {_mapping(layers, ': ', labels)} with {_mapping(limits, '=')}"
        case {"op": "planner.workers", "args": {"workers": [*workers], **limits}}:
            shares = "; ".join(
                f"{_mapping(worker['layers'], ': ', labels) or 'no layers'} with memory={worker['memory']}"
                for worker in workers
            )
            return f"plan for workers that have {shares}; with {_mapping(limits, '=')}"
        case {
            "op": "planner.block_sizes" | "planner.construct" as operation,
            "args": {"layers": dict() as layers, "enable_caching": caching, **both},
        }:
            listed = f"the layers {_mapping(layers, ': ', labels)}, caching {'on' if caching else 'off'}"
            if operation == "planner.block_sizes":
                return f"resolve the block sizes of {listed}"
            return f"create a cache manager for {listed}, with {_mapping(both, '=')}"
        case {"op": "planner.capacity", "args": {"layers": dict() as layers, "backwards": back, **limits}}:
            order = ", its groups listed backwards" if back else ""
            plan = f"a plan of {_mapping(layers, ': ', labels)} with {_mapping(limits, '=')}"
            return f"report the capacity of {plan}{order}"
        case {"op": "tensors.allocate", "args": {"layers": dict() as layers, "sharing": [*pairs], **rest}}:
            given = _mapping({name: value for name, value in rest.items() if value is not None}, "=")
            shared = f"; {_sharing(pairs)}" if pairs else ""
            return f"allocate the layers {_mapping(layers, ': ', labels)} with {given}{shared}"
        case {"op": "sharing.join", "args": {"groups": [*groups], "sharing": [*pairs], "times": times}}:
            often = "once" if times == 1 else f"{_value(times)} times"
            return f"let layers join the groups {_value(groups)}, {often}: {_sharing(pairs) or 'none'}"
        case {"op": "registry.substitute", "args": {"spec_class": old, "substitute": new}}:
            return f"substitute {new} for {old}" if new else f"undo the substitute for {old}"
        case {"op": str(operation), "args": dict() as arguments} if operation.startswith("pool."):
            return _describe_pool(operation.removeprefix("pool."), arguments)
        case {"op": str(operation), "args": dict() as arguments} if operation.startswith("cache."):
            return _describe_cache(operation.removeprefix("cache."), arguments, labels)
        case {"op": str(operation), "args": dict() as arguments} if operation.startswith("connector."):
            return _describe_connector(operation.removeprefix("connector."), arguments)
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
            return f"allocate {_count(number, 'block')}"
        case "touch" | "free", {"blocks": blocks}:
            return f"{operation} {_blocks(blocks)}"
        case "evict", {"blocks": blocks}:
            return f"take all keys from {_blocks(blocks)}"
        case "cache", {"tokens": tokens, "blocks": [*blocks], "start": int(start), "group": group}:
            after = f" after {_blocks(blocks[:start])}" if start else ""
            cached = f"cache {_blocks(blocks[start:])}{after}"
            return f"{cached} for the tokens {_value(tokens)} in group {_value(group)}"
        case "cache_partial", {"tokens": tokens, "block": block, "group": group}:
            return f"cache block {_value(block)} for the tokens {_value(tokens)} in group {_value(group)}"
        case "lookup", {"tokens": tokens, "groups": groups}:
            return f"look up the tokens {_value(tokens)} in the groups {_value(groups)}"
        case "reset", _:
            return "reset the prefix cache"
        case "usage", _:
            return "read the usage"
        case "state", _:
            return "probe the pool"
    return f"pool.{operation}({_mapping(arguments, '=')})"


def _describe_cache(operation: str, arguments: Mapping[str, Any], labels: Labels) -> str:
    """Describe an operation of a cache manager. Arguments that are off or zero are not mentioned."""
    match operation, arguments:
        case "create", {"groups": [*groups], "num_blocks": number, "enable_caching": caching, **rest}:
            listed = ", ".join(_cache_group(group, labels) for group in groups) or "no groups"
            sizes = _mapping({name: value for name, value in rest.items() if value}, "=")
            with_sizes = f", with {sizes}" if sizes else ""
            switch = "on" if caching else "off"
            return f"create a cache of {_count(number, 'block')} for {listed}, caching {switch}{with_sizes}"
        case "add", {"request": name, "tokens": tokens, **rest}:
            most = f", for at most {_count(rest['max_tokens'], 'token')}" if "max_tokens" in rest else ""
            salt = f", salt {_value(rest['salt'])}" if rest.get("salt") is not None else ""
            adapter = f", adapter {_value(rest['adapter'])}" if rest.get("adapter") is not None else ""
            return f"request {name} arrives with the tokens {_value(tokens)}{most}{salt}{adapter}"
        case "lookup", {"request": name}:
            return f"look up the prompt of {name}"
        case "allocate", {"request": name, "new": new, **rest}:
            return f"request {name} is scheduled for {_count(new, 'new token')}{_allocation(rest)}"
        case "progress", {"request": name, "computed": computed, "in_flight": in_flight, **rest}:
            output = f", and gets the output {_value(rest['output'])}" if rest.get("output") else ""
            return f"request {name} has {_count(computed, 'computed token')}, {in_flight} in flight{output}"
        case "block_ids", {"request": name}:
            return f"read the block table of {name}"
        case "cache_blocks", {"request": name, "computed": computed}:
            return f"cache the blocks of {name} up to {_count(computed, 'computed token')}"
        case "free", {"request": name}:
            return f"free the blocks of {name}"
        case "evict", {"blocks": blocks}:
            return f"take all keys from {_blocks(blocks)}"
        case "common_prefix", {"request": name}:
            return f"count the blocks that all requests have in common with {name}"
    fixed = {
        "reset": "reset the prefix cache",
        "new_step": "a new scheduler step starts",
        "take_new_block_ids": "read which blocks are new since the last time",
        "take_copies": "read which blocks are to be copied before the step runs",
        "take_events": "read the cache events since the last time",
        "state": "probe the cache",
    }
    return fixed.get(operation) or f"cache.{operation}({_mapping(arguments, '=', labels)})"


def _cache_group(group: Any, labels: Labels) -> str:
    match group:
        case {"spec": spec, **rest}:
            return _spec(spec, labels) + (" (with draft layers)" if rest.get("eagle") else "")
    return _value(group)


def _allocation(arguments: Mapping[str, Any]) -> str:
    """Describe the arguments of `allocate`, except the number of new tokens."""
    parts = []
    match arguments.get("hit"):
        case {"tokens": tokens, "blocks": blocks} if tokens:
            parts.append(f"with its prefix hit of {_count(tokens, 'token')} ({_tables(blocks)})")
    for name, what in (("lookahead", "lookahead"), ("external", "external"), ("encoder", "encoder")):
        if arguments.get(name):
            parts.append(f"with {_count(arguments[name], f'{what} token')}")
    if arguments.get("delay"):
        parts.append("not to be cached yet")
    if arguments.get("whole"):
        parts.append("only if the whole sequence fits")
    return "".join(f", {part}" for part in parts)


def _describe_connector(operation: str, arguments: Mapping[str, Any]) -> str:
    match operation, arguments:
        case "create", {"num_blocks": number, "host_blocks": host, "device": device}:
            blocks = f"{_count(number, 'block')} on {device} and {_value(host)} on the host"
            return f"create an offloading connector with {blocks}"
        case "take", {"num_blocks": number}:
            return f"allocate {_count(number, 'block')}"
        case "free", {"blocks": blocks}:
            return f"free {_blocks(blocks)}"
        case "write", {"block": block, "seed": seed}:
            return f"write to block {_value(block)}, with seed {_value(seed)}"
        case "read", {"block": block}:
            return f"read block {_value(block)}"
        case "store" | "load", {"job": job, "pairs": [*pairs]}:
            arrow = "->" if operation == "store" else "<-"
            copies = ", ".join(f"{_value(pair[0])} {arrow} {_value(pair[-1])}" for pair in pairs if pair)
            return f"{operation} (job {job}), block {arrow} host block: {copies or 'none'}"
        case "start_transfers", _:
            return "start the transfers"
        case "finished", _:
            return "read which jobs have finished since the last time"
    return f"connector.{operation}({_mapping(arguments, '=')})"


def describe_answer(op: Mapping[str, Any]) -> str:
    """Describe the answer to an operation. `op` contains the `outcome`."""
    match op:
        case {
            "op": "specs.build",
            "args": {"spec": {"fields": dict() as given}},
            "outcome": {"value": {"class": _, "fields": dict() as fields, "page_size_bytes": size}},
        }:
            rest = {
                name: value
                for name, value in fields.items()
                if value is not None and given.get(name) != value
            }
            return f"{_value(size)} bytes a page" + (f", with {_mapping(rest, '=')}" if rest else "")
        case {
            "op": "cache.create" | "pool.create",
            "outcome": {"value": {"null": null, "reserved": [*reserved]}},
        }:
            kept = f", {_blocks(reserved)} reserved" if reserved else ""
            return f"{'no null block' if null is None else f'null block {null}'}{kept}"
        case {"op": "cache.lookup", "outcome": {"value": {"tokens": tokens, "blocks": [*blocks]}}}:
            return (
                f"prefix hit of {_count(tokens, 'token')}, {_tables(blocks)}" if tokens else "no prefix hit"
            )
        case {
            "op": "cache.allocate",
            "args": {"request": name},
            "outcome": {"value": {"added": added, "needed": needed, "taken": [*taken]}},
        }:
            if added is None:
                return f"refused: {name} would need {_count(needed, 'free block')}"
            gets = f"{name} gets {_tables(added)}"
            if not all(any(block in group for group in added) for block in taken):
                gets += f", but the pool allocated {_blocks(taken)}"
            return gets + (f" ({_count(needed, 'free block')} predicted)" if needed != len(taken) else "")
        case {"op": "cache.block_ids", "outcome": {"value": [*tables]}}:
            return _tables(tables)
        case {"op": "pool.get_new_blocks" | "connector.take", "outcome": {"value": [*blocks]}}:
            return _blocks(blocks)
        case {"op": "pool.lookup", "outcome": {"value": None | [*_] as blocks}}:
            return f"cached in {_blocks(blocks)}" if blocks else "not cached"
        case {"op": "cache.reset" | "pool.reset", "outcome": {"value": bool(reset)}}:
            return "reset" if reset else "refused: a block is still referenced"
    return describe_outcome(op["outcome"])


def _count(number: Any, noun: str) -> str:
    return f"{_value(number)} {noun}" + ("" if number == 1 else "s")


def _blocks(blocks: Any) -> str:
    """Name blocks, as `block 3` or `blocks 3 and 4`."""
    match blocks:
        case []:
            return "no blocks"
        case [block]:
            return f"block {_value(block)}"
        case [*several, last]:
            shown = [_value(block) for block in several[:_LONGEST_LIST]]
            if len(several) > _LONGEST_LIST:
                shown.append(f"... {len(several) - _LONGEST_LIST} more")
            return f"blocks {', '.join(shown)} and {_value(last)}"
    return f"blocks {_value(blocks)}"


def _tables(groups: Any) -> str:
    """Describe the blocks of each group. The group's number is left out if there is only one group."""
    match groups:
        case [group]:
            return _blocks(group)
        case [*several] if any(several):
            return ", ".join(f"{_blocks(group)} in group {number}" for number, group in enumerate(several))
        case [*_]:
            return "no blocks"
    return _value(groups)


def describe_outcome(outcome: Mapping[str, Any]) -> str:
    """Describe an outcome: a value, an exception, or how the process died."""
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
    """The message of a row, without what was expected and what was observed."""
    return row.message.replace(f"expected {row.expected}; observed {row.observed}", "").strip(" :;")


def narrate(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each operation of a trace. If there are several processes, each has a heading.

    If an operation contains its `outcome`, as events do, its line ends with the answer.
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
        if op["op"] in PROBES and "outcome" not in op:
            continue
        line = describe_operation(op, built)
        if op["op"] == "specs.build":
            label = built.setdefault(
                _key(op["args"].get("spec")), f"s{len(built) + 1}" if several else "the spec"
            )
            line += f" as {label}" if several else ""
        if "outcome" in op and not (op["op"] == "specs.build" and "value" in op["outcome"]):
            line += f"  -> {describe_answer(op)}"
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
    """Describe one registration. If the base is None, the class itself is the base, and it is left out."""
    base = registration.get("base")
    pair = f"{registration.get('spec_class')} -> {registration.get('manager')}"
    return f"{pair} (base {base})" if base else pair


def _group(group: Mapping[str, Any]) -> str:
    """Describe a planned group. Neighbouring layers with equal specs are listed together."""
    listed: list[tuple[str, list[str]]] = []
    for layer in group["layers"]:
        spec = layer["spec"]
        size, page = spec["fields"].get("block_size"), spec["page_size_bytes"]
        shown = f"{spec['class']}, block_size={size}, {page} bytes a page"
        if not listed or listed[-1][0] != shown:
            listed.append((shown, []))
        listed[-1][1].append(layer["name"])
    layers = ", ".join(f"{' '.join(names)} as {shown}" for shown, names in listed)
    return f"({layers}, for {group['manager']})"


def _mapping(items: Mapping[Any, Any], joint: str, labels: Labels | None = None) -> str:
    return ", ".join(f"{key}{joint}{_spec(value, labels or {})}" for key, value in items.items())


def _content(content: Mapping[str, Any]) -> str:
    """Describe the content of a request. All tokens are shown, because each of them may matter."""
    tokens = f"tokens {content.get('tokens')!r}"
    return ", ".join([tokens, *(f"{name} {value!r}" for name, value in content.items() if name != "tokens")])


def _value(value: Any) -> str:
    """Describe plain data (see `kvref.target`), almost as Python code."""
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
