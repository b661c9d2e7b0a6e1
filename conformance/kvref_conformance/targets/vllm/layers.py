"""Layers as vLLM's model runner sees them, without weights.

A layer has a spec, and a backend, which says what the layer's kernels need. A layer that shares a cache also
has a target, the layer whose cache it uses. Stand-alone programs copy functions from this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.model_executor.layers.attention.attention import Attention, validate_kv_sharing_target
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backend import AttentionBackend, AttentionMetadataBuilder, MultipleOf
from vllm.v1.kv_cache_interface import MambaSpec

from kvref.target import Pair


def layers_of_model(
    specs: Mapping[str, Any], sharing: Sequence[Pair], layout: str, kernel_block_size: int | None
) -> dict[str, Any]:
    """Make a layer for each spec, then the sharing layers. A sharing layer has the spec of its owner."""
    targets: dict[str, str] = sharing_targets(sharing)
    layers: dict[str, Any] = {}
    for name in [*specs, *targets]:
        spec = specs[owner_of(name, targets, specs)]
        backend = backend_of(spec, layout, kernel_block_size)
        if name in targets:
            layers[name] = AttentionLayer(spec, backend, targets[name])
            validate_kv_sharing_target(name, targets[name], layers)
        elif isinstance(spec, MambaSpec):
            layers[name] = StateLayer(spec, backend)
        else:
            layers[name] = AttentionLayer(spec, backend, None)
    return layers


def sharing_targets(sharing: Sequence[Pair]) -> dict[str, str]:
    return {pair[0]: pair[1] for pair in sharing}


def owner_of(layer: str, targets: Mapping[str, str], specs: Mapping[str, Any]) -> str:
    """The layer with a cache at the end of a layer's chain of targets.

    If the chain does not end at such a layer, the result is any layer with a cache.
    """
    for _ in targets:
        layer = targets.get(layer, layer)
    return layer if layer in specs else next(iter(specs))


class AttentionLayer(Attention):  # type: ignore[misc]
    """An attention layer. `target` is the layer whose cache it uses, or None if it has its own."""

    attn_type = "decoder"

    def __init__(self, spec: Any, backend: Any, target: str | None) -> None:
        torch.nn.Module.__init__(self)  # `Attention.__init__` needs a model
        self.spec, self.backend, self.kv_sharing_target_layer_name = spec, backend, target

    def get_attn_backend(self) -> Any:
        return self.backend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        return self.spec


class StateLayer(MambaBase):  # type: ignore[misc]
    """A recurrent layer."""

    def __init__(self, spec: Any, backend: Any) -> None:
        self.spec, self.backend = spec, backend

    def get_attn_backend(self) -> Any:
        return self.backend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        return self.spec

    def get_state_shape(self) -> Any:
        return self.spec.shapes

    def get_state_dtype(self) -> Any:
        return self.spec.dtypes

    @property
    def mamba_type(self) -> Any:
        return self.spec.mamba_type


class Builder(AttentionMetadataBuilder):  # type: ignore[misc]
    """A metadata builder that builds nothing, because there are no kernels."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

    def build(self, *arguments: Any, **named: Any) -> None:
        raise NotImplementedError


def backend_of(spec: Any, layout: str, kernel_block_size: int | None) -> type[Any]:
    """Make a backend whose kernels need this layout.

    If `kernel_block_size` divides the spec's block size, the kernels need that size. Otherwise, any will do.
    """
    splits = kernel_block_size is not None and spec.block_size % kernel_block_size == 0
    axes = "BNC" if is_latent(spec) else axes_in(layout)

    class Backend(AttentionBackend):  # type: ignore[misc]
        @staticmethod
        def get_name() -> str:
            return "WITHOUT_KERNELS"

        @staticmethod
        def get_builder_cls() -> type[Any]:
            return Builder

        @staticmethod
        def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
            return [kernel_block_size if splits else MultipleOf(1)]

        # In releases where each backend has its own layout, vLLM also calls the methods below.
        @staticmethod
        def get_kv_cache_shape(
            num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
        ) -> tuple[int, ...]:
            content = 2 * head_size if axes == "BHNC" else head_size
            sizes = {"K": 2, "B": num_blocks, "N": block_size, "H": num_kv_heads, "C": content}
            return tuple(sizes[axis] for axis in axes)

        @staticmethod
        def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
            order = [axes.index(axis) for axis in layout if axis in axes]
            if not include_num_layers_dimension:
                return tuple(order)
            if order[0] != axes.index("B"):
                raise NotImplementedError  # K of all blocks comes first, so no block has its layers together
            block, *others = [1 + axis for axis in order]
            return (block, 0, *others)

    return Backend


def is_latent(spec: Any) -> bool:
    return any("MLA" in ancestor.__name__ for ancestor in type(spec).__mro__)


def axes_in(layout: str) -> str:
    """The axes of a layer's view in this layout, one letter for each (see the capability `layouts`)."""
    if "K" not in layout:
        return "BHNC"
    return "KBNHC" if layout.index("K") < layout.index("B") else "BKNHC"
