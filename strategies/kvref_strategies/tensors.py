"""Draws layers with so little memory that a law can look at every byte, and allocates their caches."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvref.target import SpecDescriptor
from kvref_strategies.models import Family, has_registry, lacking, spec_with
from kvref_strategies.specs import class_info, declares
from kvref_strategies.workload import Description, Draw, Stage, Subjects, Workload

BLOCK_SIZES = [4, 8]
"""The block sizes in tokens, if the target lists no others for a class."""

MAX_LAYERS = 4
"""The most layers that own a cache."""
MAX_SHARING = 2
"""The most sharing layers."""


def block_sizes(description: Description, name: str) -> list[int]:
    fields = class_info(description, name)["fields"]
    values = next((each.get("values") for each in fields if each["name"] == "block_size"), None)
    return list(values)[:2] if values else BLOCK_SIZES


def _fields(draw: Draw, description: Description, name: str = "FullAttentionSpec") -> dict[str, Any]:
    return {
        "block_size": draw(st.sampled_from(block_sizes(description, name))),
        "num_kv_heads": draw(st.sampled_from([1, 2, 3])),
        "head_size": draw(st.sampled_from([2, 4])),
        "dtype": draw(st.sampled_from(["torch.float16", "torch.float32"])),
    }


def _attention(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    return [spec_with(description, "FullAttentionSpec", **_fields(draw, description))]


def _other_heads(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    """Layers with the same block size but different page sizes. They do not share memory."""
    fields = _fields(draw, description)
    heads = draw(st.sampled_from([{"num_kv_heads": 4}, {"head_size": 8}, {"head_size": 3}]))
    return [spec_with(description, "FullAttentionSpec", **each) for each in (fields, {**fields, **heads})]


def _windows(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    """Layers with full attention and with a sliding window. Their groups share memory."""
    fields = _fields(draw, description)
    return [
        spec_with(description, "FullAttentionSpec", **fields),
        spec_with(description, "SlidingWindowSpec", **fields, sliding_window=2 * fields["block_size"]),
    ]


def _latent(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    """Two layers with latent attention (MLA). The second may be a sparse-attention index that keeps bytes."""
    fields = {**_fields(draw, description, "MLAAttentionSpec"), "num_kv_heads": 1}
    layer = spec_with(description, "MLAAttentionSpec", **{**fields, "head_size": 6, "dtype": "torch.float16"})
    index = spec_with(description, "MLAAttentionSpec", **{**fields, "head_size": 4, "dtype": "torch.uint8"})
    return [layer, draw(st.sampled_from([index, layer]))]


def _bytes(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    fields = _fields(draw, description)
    dtypes = ["torch.float8_e4m3fn", "torch.int8", "torch.uint8"]
    return [
        spec_with(description, "FullAttentionSpec", **{**fields, "dtype": draw(st.sampled_from(dtypes))}),
        spec_with(description, "FullAttentionSpec", **{**fields, "dtype": draw(st.sampled_from(dtypes))}),
    ]


def _padded(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    """Layers of which all or some have padded pages, as a platform may set them."""
    spec = spec_with(description, "FullAttentionSpec", **_fields(draw, description))
    built = stage.perform("specs.build", spec=spec)
    if "value" not in built:
        return [spec]
    page = built["value"]["page_size_bytes"] + draw(st.sampled_from([16, 32, 64]))
    padded = padded_to(spec, page)
    return [padded, draw(st.sampled_from([padded, spec]))]


def _states(draw: Draw, stage: Stage, description: Description) -> list[SpecDescriptor]:
    """Recurrent layers, perhaps with attention layers.

    If there are attention layers, the pages of recurrent layers are padded to the size of attention pages. A
    page size is always a multiple of the size of the largest dtype, as in all models.
    """
    shapes = draw(st.sampled_from([[[2, 3]], [[2, 3], [4]], [[4], [1, 2], [2]]]))
    dtypes = draw(
        st.sampled_from([["torch.float32"] * 3, ["torch.float32", "torch.float16", "torch.float16"]])
    )
    fields = _fields(draw, description)
    state = spec_with(
        description,
        "MambaSpec",
        block_size=fields["block_size"],
        shapes=shapes,
        dtypes=dtypes[: len(shapes)],
    )
    full = spec_with(description, "FullAttentionSpec", **{**fields, "num_kv_heads": 4})
    pages = [
        built["value"]["page_size_bytes"]
        for built in (stage.perform("specs.build", spec=spec) for spec in (full, state))
        if "value" in built
    ]
    if len(pages) < 2 or pages[0] < pages[1] or draw(st.booleans()):
        return [state]
    return [full, padded_to(state, pages[0])]


def padded_to(spec: SpecDescriptor, page: int) -> SpecDescriptor:
    return {"class": spec["class"], "fields": {**spec["fields"], "page_size_padded": page}}


FAMILIES = {
    "attention": Family(("FullAttentionSpec",), _attention),
    "other heads": Family(("FullAttentionSpec",), _other_heads),
    "windows": Family(("FullAttentionSpec", "SlidingWindowSpec"), _windows),
    "latent attention": Family(("MLAAttentionSpec",), _latent),
    "values of a byte": Family(("FullAttentionSpec",), _bytes),
    "padded pages": Family(("FullAttentionSpec",), _padded),
    "recurrent states": Family(("FullAttentionSpec", "MambaSpec"), _states),
}
"""The families of layers by name. The names are the subjects of the workloads."""


def tensor_subjects(description: Description) -> Subjects:
    never_pads = "its pages are never padded" if description["capabilities"].get("never_pads") else None
    padded = [info for info in description["classes"] if info["name"] == "FullAttentionSpec"]
    if padded and not declares(padded[0], "page_size_padded"):
        never_pads = "the class has no page_size_padded"
    subjects: dict[str, str | None] = {
        name: lacking(description, family.classes) or undeclared(description)
        for name, family in FAMILIES.items()
    }
    return {**subjects, "padded pages": subjects["padded pages"] or never_pads}


def undeclared(description: Description) -> str | None:
    """The reason why kvref cannot ask the target to allocate memory: the capabilities that it must declare.

    None if the target declares them.
    """
    missing = [name for name in ("layouts", "buffers") if not description["capabilities"].get(name)]
    return f"the target does not declare {' and '.join(missing)}" if missing else None


def draw_layers(
    draw: Draw, stage: Stage, description: Description, subject: str
) -> dict[str, SpecDescriptor]:
    """Draw layers of the family `subject`, and return their specs by the layer's name.

    Return an empty dictionary if the target cannot build one of the specs.
    """
    if has_registry(description):
        stage.perform("registry.initialise")
    specs = FAMILIES[subject].specs(draw, stage, description)
    drawn = draw(st.lists(st.sampled_from(specs), min_size=1, max_size=MAX_LAYERS))
    for spec in [spec for spec in specs if spec in drawn]:
        if "value" not in stage.perform("specs.build", spec=spec):
            return {}
    return {f"layer.{place}": spec for place, spec in enumerate(drawn)}


def draw_arguments(draw: Draw, description: Description, layers: dict[str, SpecDescriptor]) -> dict[str, Any]:
    """Draw the arguments of `tensors.allocate`."""
    capabilities = description["capabilities"]
    owners = shareable(description, layers)
    targets = draw(st.lists(st.sampled_from(owners), max_size=MAX_SHARING)) if owners else []
    return {
        "layers": layers,
        "num_blocks": draw(st.sampled_from([3, 2, 4])),
        "layout": draw(st.sampled_from(layouts_for(description, layers))),
        "buffers": draw(st.sampled_from(capabilities["buffers"])),
        "kernel_block_size": None,
        "sharing": [[f"layer.{len(layers) + place}", target] for place, target in enumerate(targets)],
        "device": description["device"],
    }


def shareable(description: Description, layers: dict[str, SpecDescriptor]) -> list[str]:
    """The names of the layers whose caches others may share: attention layers, except latent attention."""
    known = {info["name"]: info["mro"] for info in description["classes"]}
    return [
        name
        for name, spec in layers.items()
        if "AttentionSpec" in known[spec["class"]] and "MLAAttentionSpec" not in known[spec["class"]]
    ]


def layouts_for(description: Description, layers: dict[str, SpecDescriptor]) -> list[str]:
    """The layouts to draw. A layout is the order of the axes in memory, such as "LBNHC".

    If attention layers have padded pages, the first two axes must be the layers (L) and the blocks (B). Only
    these layouts keep the bytes of a page together.
    """
    known: list[str] = description["capabilities"]["layouts"]
    padded = shareable(
        description, {n: spec for n, spec in layers.items() if "page_size_padded" in spec["fields"]}
    )
    return [layout for layout in known if not padded or set(layout[:2]) == {"L", "B"}] or known


def layouts(draw: Draw, stage: Stage, description: Description, subject: str) -> None:
    """Allocate the caches of some layers. Repeat that once or twice, each time with one argument changed."""
    layers = draw_layers(draw, stage, description, subject)
    if not layers:
        return
    capabilities = description["capabilities"]
    first = draw_arguments(draw, description, layers)
    stage.perform("tensors.allocate", **first)
    changes: list[dict[str, Any]] = [{}, {"num_blocks": draw(st.sampled_from([2, 5]))}]
    if capabilities.get("kernel_blocks"):
        sizes = [spec["fields"]["block_size"] for spec in layers.values()]
        kernels = [size for size in (min(sizes) // 2, min(sizes) // 4) if size]
        changes += [{"kernel_block_size": size} for size in kernels]
    if more := more_heads(description, layers):
        changes.append({"layers": more})
    changes += [{"buffers": each} for each in capabilities["buffers"] if each != first["buffers"]]
    for change in draw(st.lists(st.sampled_from(changes[1:]), min_size=1, max_size=2)):
        stage.perform("tensors.allocate", **{**first, **change})


def more_heads(
    description: Description, layers: dict[str, SpecDescriptor]
) -> dict[str, SpecDescriptor] | None:
    """The same layers with twice the heads, and with float32 in place of float16.

    None if the number of heads of some layer cannot be changed, or if its pages are padded.
    """
    made: dict[str, SpecDescriptor] = {}
    for name, spec in layers.items():
        fields, info = spec["fields"], class_info(description, spec["class"])
        latent = "MLAAttentionSpec" in info["mro"]
        if not declares(info, "num_kv_heads") or latent or "page_size_padded" in fields:
            return None
        wider = {"torch.float16": "torch.float32"}.get(fields["dtype"], fields["dtype"])
        changed = {**fields, "num_kv_heads": 2 * fields["num_kv_heads"], "dtype": wider}
        made[name] = {"class": spec["class"], "fields": changed}
    return made


WORKLOADS = [
    Workload(
        "tensors.layouts",
        ("specs", "tensors", "tensors.allocate"),
        tensor_subjects,
        layouts,
        weight=0.5,
        unobserved="the target did not allocate these layers, or nothing that the law is about",
        proof=("tensors.allocate",),
    ),
]
