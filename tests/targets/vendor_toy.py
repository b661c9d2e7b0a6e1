"""A vendor's small target without torch. Some of its behaviour must be declared in a profile."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields, replace
from types import SimpleNamespace
from typing import Any


class KVCacheSpec: ...


@dataclass(frozen=True)
class FullAttentionSpec(KVCacheSpec):
    block_size: int
    num_kv_heads: int
    head_size: int

    def __post_init__(self) -> None:
        if self.block_size % 16:
            raise ValueError(f"block size {self.block_size} is no multiple of 16")

    @property
    def page_size_bytes(self) -> int:
        return 2 * 2 * self.block_size * self.num_kv_heads * self.head_size


@dataclass(frozen=True)
class PaddedSpec(FullAttentionSpec):
    page_size_padded: int | None = None

    @property
    def page_size_bytes(self) -> int:
        return self.page_size_padded or super().page_size_bytes


@dataclass(frozen=True)
class LanesSpec(FullAttentionSpec):
    lanes: int
    """A field that kvref does not know and that has no default."""


FAMILY: dict[str, Any] = {
    cls.__name__: cls for cls in (KVCacheSpec, FullAttentionSpec, PaddedSpec, LanesSpec)
}


def make(spec: dict[str, Any]) -> Any:
    return FAMILY[spec["class"]](**spec["fields"])


def facts(spec: Any) -> dict[str, Any]:
    return {"class": type(spec).__name__, "fields": asdict(spec), "page_size_bytes": spec.page_size_bytes}


def classes() -> list[dict[str, Any]]:
    return [
        {
            "name": cls.__name__,
            "mro": [ancestor.__name__ for ancestor in cls.__mro__ if ancestor is not object],
            "fields": [
                {"name": field.name, **({} if field.default is MISSING else {"default": field.default})}
                for field in (fields(cls) if cls is not KVCacheSpec else ())
            ],
            "role": "base" if cls is KVCacheSpec else "layer",
        }
        for cls in FAMILY.values()
    ]


def build(spec: dict[str, Any]) -> dict[str, Any]:
    return facts(make(spec))


def copy(spec: dict[str, Any], block_size: int) -> dict[str, Any]:
    return facts(replace(make(spec), block_size=block_size))


def merge(specs: list[dict[str, Any]]) -> dict[str, Any]:
    made = [make(spec) for spec in specs]
    if any(spec != made[0] for spec in made):
        raise ValueError(f"cannot merge different specs: {made}")
    return facts(made[0])


def target(**replaced: Any) -> SimpleNamespace:
    operations = {"classes": classes, "build": build, "copy": copy, "merge": merge, **replaced}
    return SimpleNamespace(
        name="vendor", version="1", capabilities={}, specs=SimpleNamespace(**operations), registry=None
    )


def good() -> Any:
    return target()


def forgetful() -> Any:
    """Merging loses the head size if there are several heads, otherwise the number of heads."""

    def merge_forgets(specs: list[dict[str, Any]]) -> dict[str, Any]:
        merged = merge(specs)
        if specs[0]["class"] == "FullAttentionSpec":
            merged["fields"]["head_size" if merged["fields"]["num_kv_heads"] > 1 else "num_kv_heads"] = 0
        return merged

    return target(merge=merge_forgets)


def never_pads() -> Any:
    def build_refuses(spec: dict[str, Any]) -> dict[str, Any]:
        if "page_size_padded" in spec["fields"]:
            raise ValueError("pages are never padded")
        return build(spec)

    return target(build=build_refuses)


def ends() -> Any:
    """Merging ends the process."""

    def merge_ends(specs: list[dict[str, Any]]) -> dict[str, Any]:
        import os

        os._exit(3)

    return target(merge=merge_ends)


def needs_runtime() -> Any:
    """Imports a module that is found only if the profile says where it is."""
    import vendor_runtime  # type: ignore[import-not-found]

    made = target()
    made.name = vendor_runtime.NAME
    return made
