"""The fast canonical view: on a CUDA device, one launch copies any number of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from kvref import canonical
from kvref.canonical import check_blocks
from kvref.fast.device_copy import RowTable, copied_in_one_launch
from kvref.tensors import KVCaches

__all__ = ["CanonicalKVCaches", "copy_blocks", "register_kv_caches"]


@dataclass(frozen=True)
class CanonicalKVCaches(canonical.CanonicalKVCaches):
    """The plain canonical view, together with the device addresses of the rows of each group."""

    @property
    def row_tables(self) -> tuple[RowTable, ...]:
        """For each group, the addresses of the rows that hold the content of its layers."""
        return self._row_tables

    @cached_property
    def _row_tables(self) -> tuple[RowTable, ...]:
        return tuple(
            RowTable.of(
                [(self.tensors[ref.tensor_idx].tensor, ref.page_size_bytes) for ref in refs], self.device
            )
            for refs in self.group_data_refs
        )

    def __getstate__(self) -> dict[str, object]:
        """The state for copying and pickling. It has no row tables, because a copy has memory of its own."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def register_kv_caches(kv_caches: KVCaches) -> CanonicalKVCaches:
    """Make the canonical view as `kvref.canonical.register_kv_caches` does, but return this module's class.

    This module's `CanonicalKVCaches` also has the rows' device addresses.
    """
    made = canonical.register_kv_caches(kv_caches)
    return CanonicalKVCaches(made.tensors, made.group_data_refs)


def copy_blocks(
    source: canonical.CanonicalKVCaches,
    destination: canonical.CanonicalKVCaches,
    group: int,
    block_pairs: Sequence[tuple[int, int]],
) -> None:
    """Copy blocks like `kvref.canonical.copy_blocks`, but with a single launch if that is possible."""
    if isinstance(source, CanonicalKVCaches) and isinstance(destination, CanonicalKVCaches):
        check_blocks(source, group, [block for block, _ in block_pairs])
        check_blocks(destination, group, [block for _, block in block_pairs])
        if copied_in_one_launch(source, destination, group, block_pairs):
            return
    canonical.copy_blocks(source, destination, group, block_pairs)
