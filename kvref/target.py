"""The protocol an implementation under test offers.

A `Target` has a name, a version, capabilities and *parts*. A part is any object, a module included,
whose functions take and return plain data (numbers, strings, lists, dictionaries), never objects of
the implementation: that keeps programs short, traces readable, and one suite usable for every
implementation.

An operation is written `"<part>.<function>"` with keyword arguments; `perform` runs one. A target that
lacks a part leaves the attribute as `None` or out, and the laws that need the part do not apply.

How values are written as plain data:

* `torch.dtype`: `"torch.float16"`; an enum member: `{"enum": "KVQuantMode", "name": "NONE"}`;
  a fraction: `{"fraction": [1, 4]}`; a tuple: a list; a spec inside a spec: its descriptor;
* anything else: `{"opaque": repr}`, which can be compared but not built from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, Protocol, TypeAlias, TypedDict

__all__ = [
    "Allocation",
    "BlockSizes",
    "CacheEvent",
    "CacheGroup",
    "CachePart",
    "CacheShape",
    "CacheState",
    "Call",
    "Capacity",
    "CapacityReport",
    "Constructed",
    "Content",
    "ContentItem",
    "Copy",
    "DriftPart",
    "FieldInfo",
    "HashingPart",
    "Hit",
    "Json",
    "Outcome",
    "Override",
    "Parameter",
    "Plan",
    "PlannedGroup",
    "PlannedLayer",
    "PlannerPart",
    "PluginInfo",
    "PoolPart",
    "PoolShape",
    "PoolState",
    "Races",
    "Registration",
    "RegistryEntry",
    "RegistryPart",
    "Replaced",
    "SizedPlan",
    "SpecClassInfo",
    "SpecDescriptor",
    "SpecFacts",
    "SpecsPart",
    "Step",
    "Storage",
    "Target",
    "Twins",
    "Unpickled",
    "WorkerLayers",
    "perform",
]

Json: TypeAlias = Any
"""Plain data: None, bool, int, float, str, list or dict of plain data."""

# `class` is a keyword, hence the call syntax.
SpecDescriptor = TypedDict(
    "SpecDescriptor",
    {"class": str, "fields": dict[str, Json], "declared": NotRequired[dict[str, Json]]},
)
"""How to build a spec: its class by name and the fields that differ from their defaults.

`declared` is what the target declares of the class by its capabilities. It is there for the laws; whoever
builds the spec ignores it.
"""

SpecFacts = TypedDict(
    "SpecFacts",
    {
        "class": str,
        "fields": dict[str, Json],
        "page_size_bytes": int,
        "unpadded_page_size_bytes": NotRequired[int | None],
        "mro": NotRequired[list[str]],
    },
)
"""What a built spec says of itself: class, every field, page size in bytes; where the implementation tells
them apart the bytes of the page that carry content; and the class's ancestors, as in `SpecClassInfo`."""


class FieldInfo(TypedDict):
    """One field of a spec class; `default` is absent when the field is required."""

    name: str
    default: NotRequired[Json]
    values: NotRequired[list[Json]]
    """What an engine may give it, the simplest first; empty when it leaves the field alone. Absent when
    that follows from the field's name."""


class SpecClassInfo(TypedDict):
    """A spec class: `mro` names its ancestors, itself first, `KVCacheSpec` last."""

    name: str
    mro: list[str]
    fields: list[FieldInfo]
    role: Literal["layer", "base", "composite"]
    """What the class describes: the cache of a layer; nothing by itself (a base of other classes); or
    the caches of several layers (`UniformTypeKVCacheSpecs`)."""
    module: NotRequired[str]
    origin: NotRequired[Literal["stock", "plugin"]]
    """Whose class it is: the implementation's own, which is understood, or that of its plugin."""


class PluginInfo(TypedDict):
    """The plugin that an implementation runs with."""

    name: str
    version: str
    packages: list[str]
    """Its top-level packages."""
    managers: dict[str, list[str]]
    """The manager classes it brings, each with its ancestors in the implementation, nearest first."""
    notes: list[str]
    """Sentences about it that its author should read."""
    hook_has_run: NotRequired[str]
    """Why the platform's hook had to run while the target was loaded, if it had to."""


class Parameter(TypedDict):
    """One parameter of a method, the one for the instance or class left out; `kind` as `inspect` names it."""

    name: str
    kind: str
    required: bool


class Override(TypedDict):
    """An attribute of a plugin's class that an ancestor within the implementation has, too.

    `kind` is method, class method, static method, property or attribute. Parameters are None where there
    are none to be known.
    """

    name: str
    kind: str
    parameters: list[Parameter] | None
    core_class: str
    core_kind: str
    core_parameters: list[Parameter] | None


class Call(TypedDict):
    """A call in the implementation's own code: how many arguments by position, which by keyword.

    `open` tells that it also unpacks a sequence or a mapping.
    """

    name: str
    positional: int
    keywords: list[str]
    open: bool
    place: str


class Replaced(TypedDict):
    """A name of the implementation under which there is something of the plugin's.

    `by` is what it is now. `stale` lists the names under which modules still have the original, as those do
    that imported it before it was replaced.
    """

    name: str
    by: str
    stale: list[str]


class Twins(TypedDict):
    """How two specs built alike compare."""

    equal: bool
    hashes_equal: bool


class Unpickled(TypedDict):
    """A spec out of a pickle, and whether it equals one built anew."""

    facts: SpecFacts
    equal: bool


class RegistryEntry(TypedDict):
    """What a look-up answers: names of the manager and of the uniform base, or None for unknown."""

    manager: str | None
    base: str | None


class Registration(TypedDict):
    """One registration: spec class, manager class and uniform base (None = the class itself)."""

    spec_class: str
    manager: str
    base: str | None


class Step(TypedDict):
    """An operation inside another one: its name (`"registry.lookup"`) and its arguments."""

    op: str
    args: dict[str, Json]


class Races(TypedDict):
    """What came of steps in several threads: distinct observations, each from a process of its own.

    An observation is `{"answers": [[outcome, ...], ...], "after": [outcome, ...]}`, with the outcomes of each
    thread's steps and of those performed when all threads had ended; or `{"died": how}`.
    """

    orders: list[Json]
    """Of the steps one after the other, in every order that keeps that of each thread."""
    races: list[Json]
    """Of the threads side by side."""


class ContentItem(TypedDict):
    """An image or the like, whose embeddings take the place of tokens of the prompt."""

    id: str
    """Names its content: equal ids mean equal embeddings."""
    offset: int
    """Position of its first placeholder."""
    length: int
    """Number of its placeholders."""
    is_embed: list[bool] | None
    """Which of the placeholders embeddings are put at, one after the other; None means all."""


class Content(TypedDict):
    """What the KV of a request depends on. What it does not say is not there."""

    tokens: list[int]
    """The tokens; what they are where something else takes their place means nothing."""
    generated: NotRequired[int]
    """How many of them, the last ones, the request gets one by one after it was made."""
    adapter: NotRequired[str]
    salt: NotRequired[str]
    items: NotRequired[list[ContentItem]]
    """Sorted by offset. No embeddings of two items are at one position, but placeholders may be."""
    embeddings: NotRequired[dict[str, list[float]]]
    """What takes the place of tokens of the prompt, by position. Not together with items."""


class PlannedLayer(TypedDict):
    """A layer within a plan: the spec that the plan has for it, and the manager of such specs."""

    name: str
    spec: SpecFacts
    manager: str | None


class PlannedGroup(TypedDict):
    """Layers that share block tables, and the manager that allocates for all of them."""

    layers: list[PlannedLayer]
    manager: str | None


class Plan(TypedDict):
    """How layers are grouped. `given` tells what was handed to the planner, as it is when that is done."""

    groups: list[PlannedGroup]
    given: dict[str, SpecFacts]


class Storage(TypedDict):
    """Where a layer's pages are: that of block `b` starts at byte `offset + b * block_stride` of a tensor."""

    tensor: int
    offset: int
    block_stride: int


class SizedPlan(Plan):
    """A plan with memory: blocks, the null block included; the bytes of each tensor; each layer's storage."""

    num_blocks: int
    tensors: list[int]
    storage: dict[str, Storage]


class WorkerLayers(TypedDict):
    """What one of several workers has: the layers that run on it, and bytes for them."""

    layers: dict[str, SpecDescriptor]
    memory: int


class BlockSizes(TypedDict):
    """A plan, and the block sizes, in tokens, that an engine of it works with."""

    groups: list[PlannedGroup]
    scheduler_block_size: int
    """Cache hits are multiples of it."""
    hash_block_size: int
    """From one hash of a request to the next."""
    said: list[str]
    """What the implementation told the user meanwhile, by warnings and by lines of a log that is on."""


class Constructed(TypedDict):
    """The block sizes that a cache manager works with, by the name of the object that has them.

    What an object does not show is left out.
    """

    scheduler_block_size: dict[str, int] | None
    """None where a cache manager is not told it."""
    hash_block_size: dict[str, int]


class Capacity(TypedDict):
    """What an implementation tells its user of a plan."""

    max_concurrency: float
    """How many requests of the longest length run at once."""
    num_tokens: NotRequired[int]
    """Tokens of that many requests."""


class CapacityReport(TypedDict):
    """What is told of a plan, by who is asked: workers and scheduler may have different views of it."""

    num_blocks: int
    """Of the plan, the null block included."""
    blocks_per_request: list[int]
    """The most that a request of the longest length holds of each group, as its spec says."""
    told: dict[str, Capacity]


class PoolShape(TypedDict):
    """What a new pool says of blocks that nobody is ever given."""

    null: int | None
    """The block that stands for one that is not needed; None where there is no such block."""
    reserved: list[int]
    """Blocks that the pool keeps for good."""


class PoolState(TypedDict):
    """What is in a pool, read without the functions that are under test."""

    free: list[int]
    """The free blocks, in the order of their reuse."""
    free_count: int
    """How many the pool believes to be free."""
    refs: list[int]
    """How often each block is held, by block."""
    keys: dict[str, list[str]]
    """The keys that each block carries, for blocks that carry any: a word for each hash and group."""
    found: dict[str, list[int]]
    """The blocks that the index has for each key."""


class CacheGroup(TypedDict):
    """A group of layers: the spec that they have, and whether layers of a draft model are among them."""

    spec: SpecDescriptor
    eagle: bool
    kind: NotRequired[str]
    """The kind whose rules the laws apply. It is there for them; whoever builds the cache ignores it."""


class CacheShape(TypedDict):
    """What a new cache says of itself."""

    null: int | None
    reserved: list[int]
    """Blocks that it keeps for good."""
    alignment: int
    """Hits are multiples of so many tokens."""
    caps: list[int | None]
    """For each group the most blocks that a request is expected to hold when it is admitted; None for as
    many as its tokens take."""
    reports_new: list[bool]
    """For each group, whether `take_new_block_ids` tells its blocks."""


class Hit(TypedDict):
    """What is cached for a request: how many tokens, in which blocks of each group, null ones included."""

    tokens: int
    blocks: list[list[int]]
    hashes: list[str]
    """The request's hashes, one for each `hash_block_size` tokens: with "/" and the number of the group
    behind it, each is a key as `CacheState` has them."""
    junction: NotRequired[int]
    """Where a prefix ends that is shared and of which some group has not cached all, 0 if there is none.
    A step ends there, so that a recurrent state can be kept."""


class Allocation(TypedDict):
    """What came of asking for places.

    `added` has what each group's table got at its end, null blocks included; None where it was refused.
    """

    added: list[list[int]] | None
    needed: int
    """How many free blocks the cache predicted to use."""
    taken: list[int]
    """The blocks that it then took out of the pool, those of hits not among them."""


class Copy(TypedDict):
    """A block whose content has to be copied before the step that was just scheduled runs."""

    source: int
    destination: int


class CacheEvent(TypedDict):
    """What the cache tells others of a change: keys that are stored or removed, or that all were cleared.

    A target that does not tell something leaves it out.
    """

    what: Literal["stored", "removed", "cleared"]
    hashes: list[str]
    group: NotRequired[int]
    parent: NotRequired[str | None]
    tokens: NotRequired[list[int]]
    block_size: NotRequired[int]


class CacheState(PoolState):
    """What is in a cache, read without the functions that are under test."""

    tables: dict[str, list[list[int]]]
    """The blocks of each group, by request; null blocks where none is needed."""
    pins: list[int]
    """Blocks held by the cache itself, for copies that are still to be made; once for each time."""


class Outcome(TypedDict, total=False):
    """What an operation answered: exactly one of `value`, `error`, `died`."""

    value: Json
    error: dict[str, str]
    """`type` and `message` of the exception that the operation raised."""
    died: str
    """How the process ended, or that it gave no answer in time."""


class SpecsPart(Protocol):
    """The spec family. Each call that the implementation refuses raises its own exception."""

    def classes(self) -> list[SpecClassInfo]:
        """Every spec class of the implementation, in a stable order."""
        ...

    def build(self, spec: SpecDescriptor) -> SpecFacts:
        """Construct a spec and read it back."""
        ...

    def copy(self, spec: SpecDescriptor, block_size: int) -> SpecFacts:
        """`copy_with_new_block_size` of the spec; block size in tokens."""
        ...

    def merge(self, specs: Sequence[SpecDescriptor]) -> SpecFacts:
        """`merge` of the specs, called on the class of the first, as a planner calls it."""
        ...

    def derive(self, name: str, base: str, fields: Mapping[str, Json]) -> list[str]:
        """Define a spec class as a vendor would, with fields of its own by name and default.

        The class replaces an earlier one of that name. Return its MRO by name.
        """
        ...

    def twins(self, spec: SpecDescriptor) -> Twins:
        """Build the spec twice and compare the two; an unhashable one raises."""
        ...

    def mutable_fields(self, spec: SpecDescriptor) -> list[str]:
        """The fields of a built spec whose value an assignment or a deletion changes."""
        ...

    def pickled(self, spec: SpecDescriptor) -> str:
        """A pickle of the spec, as base64 text."""
        ...

    def unpickled(self, data: str, spec: SpecDescriptor) -> Unpickled:
        """Unpickle what `pickled` returned, and compare it with the spec built anew."""
        ...

    def uniform(self, specs: Sequence[SpecDescriptor]) -> bool:
        """Whether a planner takes layers with these specs, in this order, for one type."""
        ...

    def max_memory(
        self, spec: SpecDescriptor, max_model_len: int, max_in_flight_tokens: int, max_encoder_tokens: int
    ) -> int:
        """`max_memory_usage_bytes` of the spec where the engine has these limits, all in tokens.

        `max_in_flight_tokens` may be scheduled and not yet confirmed computed.
        """
        ...


class RegistryPart(Protocol):
    """The registry that maps spec classes to manager classes. State lives for the process."""

    def managers(self) -> list[str]:
        """Names of the built-in manager classes, in a stable order."""
        ...

    def define_spec(self, name: str, bases: Sequence[str]) -> list[str]:
        """Define a spec class without fields of its own; return its MRO by name."""
        ...

    def define_manager(self, name: str, base: str) -> None:
        """Define a manager class derived from a known one."""
        ...

    def initialise(self) -> None:
        """What an engine calls at start: register the built-in classes, run the platform's hook."""
        ...

    def install_hook(self, registrations: Sequence[Registration]) -> None:
        """Make the platform's hook register these classes whenever it runs."""
        ...

    def register(self, spec_class: str, manager: str, base: str | None) -> None:
        """Register a class directly."""
        ...

    def decorate(self, spec_class: str, manager: str, base: str | None) -> None:
        """Register a class the way a decorator does at import."""
        ...

    def lookup(self, spec: SpecDescriptor) -> RegistryEntry:
        """Manager and uniform base for a spec."""
        ...

    def check(self, layers: Mapping[str, SpecDescriptor]) -> None:
        """Check that the spec of every layer (by layer name) is registered, as planning does first."""
        ...

    def override(self, spec_class: str, manager: str | None, base: str | None) -> None:
        """Replace what is registered for a class; a manager or uniform base of None keeps the present one.

        Only asked of a target that declares the capability `override`, and never with both None.
        """
        ...

    def substitute(self, spec_class: str, substitute: str | None) -> None:
        """Have layers that declare a class planned as another that derives from it; None undoes that.

        Only asked of a target that declares the capability `override`.
        """
        ...

    def uniform(self, specs: Sequence[SpecDescriptor]) -> bool:
        """`is_uniform_with_collection`, asked of the first spec about all of them, as a planner asks it."""
        ...

    def race(self, threads: Sequence[Sequence[Step]], after: Sequence[Step], points: int) -> Races:
        """Perform each list of steps in a thread, `points` times, each time in a child of this process.

        `kvref_conformance.targets.racing` does it for any target: the first thread is interrupted for the
        others to run, each time somewhere else.
        """
        ...


class PlannerPart(Protocol):
    """What decides which layers share blocks, and how many there are.

    `layers` has the spec of each layer by its name, in the order of the model.
    """

    def groups(self, layers: Mapping[str, SpecDescriptor]) -> Plan:
        """Put the layers into groups, with pages of one size where that is needed."""
        ...

    def config(
        self,
        layers: Mapping[str, SpecDescriptor],
        memory: int,
        max_model_len: int,
        max_in_flight_tokens: int,
    ) -> SizedPlan:
        """Do all that is done for one worker at start, which has `memory` bytes; the limits are in tokens."""
        ...

    def workers(
        self, workers: Sequence[WorkerLayers], max_model_len: int, max_in_flight_tokens: int
    ) -> list[SizedPlan]:
        """The same for several workers of one engine; a layer that some of them have is the same layer."""
        ...

    def block_sizes(self, layers: Mapping[str, SpecDescriptor], enable_caching: bool) -> BlockSizes:
        """Group the layers, and resolve the block sizes that an engine then works with."""
        ...

    def construct(
        self,
        layers: Mapping[str, SpecDescriptor],
        enable_caching: bool,
        scheduler_block_size: int,
        hash_block_size: int,
    ) -> Constructed:
        """Group the layers, and make a cache manager that is to work with these block sizes."""
        ...

    def capacity(
        self,
        layers: Mapping[str, SpecDescriptor],
        memory: int,
        max_model_len: int,
        max_in_flight_tokens: int,
        backwards: bool,
    ) -> CapacityReport:
        """Plan as `config` does, perhaps list the groups backwards, and tell what that amounts to."""
        ...


class DriftPart(Protocol):
    """How a plugin and the implementation it plugs into fit together."""

    def watch_hook(self) -> None:
        """Count from now on how often the platform's hook runs."""
        ...

    def hook_calls(self) -> int:
        """How often it has run since."""
        ...

    def overrides(self, name: str) -> list[Override]:
        """What a spec or manager class of the plugin overrides."""
        ...

    def calls(self, names: Sequence[str]) -> list[Call]:
        """The calls of methods of these names in the implementation's own code."""
        ...

    def reached(
        self, spec: SpecDescriptor, of_spec: Sequence[str], of_manager: Sequence[str], derived: bool
    ) -> list[str]:
        """Which of these attributes of a spec and of its manager are reached while they are used.

        With `derived`, both are of classes derived from the usual ones and registered, which override these
        attributes and change nothing. An attribute is written `"spec.NAME"` or `"manager.NAME"`.
        """
        ...

    def start(self) -> None:
        """What an engine calls before it makes its configuration: where a plugin may replace names."""
        ...

    def replaced(self, packages: Sequence[str]) -> list[Replaced]:
        """The names of the implementation under which there is code of the plugin's packages."""
        ...

    def present(self, names: Sequence[str]) -> list[bool]:
        """Which of these names exist in the implementation."""
        ...

    def read(self, names: Sequence[str], packages: Sequence[str]) -> list[bool]:
        """Of which of these names some code of the implementation or the packages reads the last part."""
        ...


class HashingPart(Protocol):
    """The hashes under which blocks of a request are found again.

    Which kinds of content it takes besides tokens the capability `contents` tells.
    """

    def block_hashes(self, content: Content, hash_block_size: int) -> list[str]:
        """The chain hashes of a request of this content, one for each full hash block, in hexadecimal."""
        ...

    def keys(self, content: Content, hash_block_size: int, block_size: int) -> list[str]:
        """The hashes that name the blocks of a size, a multiple of `hash_block_size`."""
        ...


class PoolPart(Protocol):
    """A pool of blocks and the index of their content. There is one, from a `create` to the next.

    A block is a number from 0 on. Tokens are what a request consists of up to some block; equal tokens are
    equal content.
    """

    def create(
        self,
        num_blocks: int,
        enable_caching: bool,
        block_size: int,
        hash_block_size: int,
        declared: Mapping[str, Json] | None = None,
    ) -> PoolShape:
        """Start anew, with blocks of `block_size` tokens, hashed every `hash_block_size` tokens.

        `declared` is what capabilities say of the pool. It is there for the laws.
        """
        ...

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Take so many free blocks."""
        ...

    def touch(self, blocks: Sequence[int]) -> None:
        """Hold blocks that were found, or are held already, once more; null blocks mean nothing."""
        ...

    def free(self, blocks: Sequence[int]) -> None:
        """Give up one reference to each, in this order; null blocks mean nothing."""
        ...

    def cache(self, tokens: Sequence[int], blocks: Sequence[int], start: int, group: int) -> None:
        """Give keys to the blocks from place `start` on of a table, all of them full of these tokens.

        Null blocks get none.
        """
        ...

    def cache_partial(self, tokens: Sequence[int], block: int, group: int) -> None:
        """Give a key to the block in which these tokens end, before its own end.

        Only asked of a target that declares the capability `partial_keys`.
        """
        ...

    def lookup(self, tokens: Sequence[int], groups: Sequence[int]) -> list[int] | None:
        """A block of each group in which these tokens end, or None unless all have one."""
        ...

    def evict(self, blocks: Sequence[int]) -> None:
        """Take all keys from blocks, whether they are held or not."""
        ...

    def reset(self) -> bool:
        """Take all keys from all blocks, and say so; do nothing, and say so, while a block is held."""
        ...

    def usage(self) -> float:
        """The part of the blocks that is held, from 0 to 1, of those that can be."""
        ...

    def state(self) -> PoolState:
        """The probe."""
        ...


class CachePart(Protocol):
    """A cache manager, as a scheduler drives it. docs/engine-contract.md tells what a scheduler may do.

    Requests have names. All counts are of tokens unless they say otherwise. There is one cache at a time.
    """

    def create(
        self,
        groups: Sequence[CacheGroup],
        num_blocks: int,
        scheduler_block_size: int,
        hash_block_size: int,
        max_model_len: int,
        max_in_flight_tokens: int,
        enable_caching: bool,
        use_eagle: bool,
        max_encoder_tokens: int,
    ) -> CacheShape:
        """Make a new cache with so many blocks, the null block included, without any request."""
        ...

    def add(self, request: str, tokens: Sequence[int], max_tokens: int, salt: str | None) -> None:
        """Let there be a request with this prompt, that gets at most `max_tokens` more."""
        ...

    def lookup(self, request: str) -> Hit:
        """`get_computed_blocks`."""
        ...

    def allocate(
        self,
        request: str,
        new: int,
        hit: Hit | None = None,
        lookahead: int = 0,
        external: int = 0,
        delay: bool = False,
        encoder: int = 0,
        whole: bool = False,
    ) -> Allocation:
        """`allocate_slots` for so many new tokens.

        `hit` is what a look-up just found, and `external` tokens behind it are loaded from elsewhere; `delay`
        asks for no keys yet, and `whole` to refuse unless all tokens of the request would fit.
        """
        ...

    def progress(self, request: str, computed: int, in_flight: int, output: Sequence[int]) -> None:
        """Tell how far a request is.

        That is tokens scheduled up to now, those of them that are not confirmed, and its output since the
        last time.
        """
        ...

    def cache_blocks(self, request: str, computed: int) -> None:
        """Let so many tokens have keys, once they are there for certain."""
        ...

    def free(self, request: str) -> None:
        """Take all blocks from a request. It may be allocated for anew."""
        ...

    def evict(self, blocks: Sequence[int]) -> None:
        """Take all keys from blocks, whether they are held or not."""
        ...

    def reset(self) -> bool:
        """Take all keys from all blocks, and say so; do nothing, and say so, while a block is held."""
        ...

    def new_step(self) -> None:
        """`new_step_starts`: called once before what is scheduled for a step."""
        ...

    def take_new_block_ids(self) -> list[int]:
        """The blocks given to requests since the last call, for those who have to zero them."""
        ...

    def take_copies(self) -> list[Copy]:
        """The copies to be made before the step runs; after the call they count as made."""
        ...

    def take_events(self) -> list[CacheEvent]:
        """What happened to keys since the last call, in order."""
        ...

    def common_prefix(self, request: str) -> list[int]:
        """`get_num_common_prefix_blocks`, for each group."""
        ...

    def state(self) -> CacheState:
        """The probe."""
        ...


class Target(Protocol):
    """An implementation under test."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def capabilities(self) -> Mapping[str, Json]:
        """What the implementation declares beyond the parts it has, by capability name."""
        ...

    @property
    def specs(self) -> SpecsPart | None: ...

    @property
    def registry(self) -> RegistryPart | None: ...

    @property
    def drift(self) -> DriftPart | None: ...

    @property
    def hashing(self) -> HashingPart | None: ...

    @property
    def planner(self) -> PlannerPart | None: ...

    @property
    def pool(self) -> PoolPart | None: ...

    @property
    def cache(self) -> CachePart | None: ...

    @property
    def plugin(self) -> PluginInfo | None:
        """The plugin it runs with, or None. With the interpreter option `-X kvref-no-plugin` it has none."""
        ...


def perform(target: Target, operation: str, arguments: Mapping[str, Json]) -> Outcome:
    """Run one operation and tell what came of it; no `Exception` of the target escapes.

    Raises:
        LookupError: the target has no such part or function, which is the caller's mistake.
    """
    part_name, _, function_name = operation.partition(".")
    function = getattr(getattr(target, part_name, None), function_name, None)
    if function is None:
        raise LookupError(f"target {target.name!r} has no operation {operation!r}")
    try:
        return {"value": function(**arguments)}
    except Exception as error:
        return {"error": {"type": type(error).__name__, "message": str(error)}}
