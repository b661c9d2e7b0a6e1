"""Faults of a target as a whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from kvref.specs import ChunkedLocalAttentionSpec
from kvref_conformance.targets.faults.breaking import break_it
from kvref_conformance.targets.reference.target import ReferenceTarget


def merge_ends_the_process() -> ReferenceTarget:
    """Merging the specs of chunked layers aborts the process."""

    def merge(cls: type[Any], specs: Sequence[Any]) -> Any:
        os.abort()

    break_it(ChunkedLocalAttentionSpec, "merge", classmethod(merge))
    return ReferenceTarget()
