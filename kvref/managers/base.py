"""What the managers of all attention kinds share."""

from __future__ import annotations

from typing import ClassVar

from kvref.errors import SpecKindError
from kvref.specs import KVCacheSpec

__all__ = ["SingleTypeKVCacheManager"]


class SingleTypeKVCacheManager:
    """Manages the blocks of layers with one spec; a subclass knows the rules of one attention kind.

    Raises:
        SpecKindError: at construction, for a spec of another kind.
    """

    spec_class: ClassVar[type[KVCacheSpec]] = KVCacheSpec
    """The kind of spec it manages, subclasses included."""

    def __init__(self, kv_cache_spec: KVCacheSpec) -> None:
        if not isinstance(kv_cache_spec, self.spec_class):
            raise SpecKindError(
                f"{type(self).__name__} manages {self.spec_class.__name__} and its subclasses, "
                f"not {type(kv_cache_spec).__name__}: register that class with a manager of its kind"
            )
        self.kv_cache_spec = kv_cache_spec
        self.block_size = kv_cache_spec.block_size

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many tokens, counted from the first, no later token will need again.

        Args:
            num_computed_tokens: tokens computed so far, at least 0; the next one has this position.

        Returns:
            A number of tokens, never above `num_computed_tokens`; 0 unless the kind forgets.
        """
        return 0
