from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from kvref.errors import (
    ConflictingRegistrationError,
    PlatformError,
    RegistrationError,
    UnregisteredSpecError,
)
from kvref.managers import (
    ChunkedLocalAttentionManager,
    CrossAttentionManager,
    FullAttentionManager,
    MambaManager,
    SinkFullAttentionManager,
    SlidingWindowManager,
)
from kvref.platform import Platform, set_current_platform
from kvref.registry import (
    KVCacheSpecMetadata,
    KVCacheSpecRegistry as Registry,
    register_all_kvcache_specs,
    register_kv_cache_spec,
)
from kvref.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)
from kvref.uniform import is_uniform_with_collection

ATTENTION: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": torch.float16}


class AcmeManager(FullAttentionManager):
    pass


class OtherManager(FullAttentionManager):
    pass


@dataclass(frozen=True, kw_only=True)
class AcmeSpec(FullAttentionSpec):
    tile: int = 4


@dataclass(frozen=True, kw_only=True)
class AcmeChildSpec(AcmeSpec):
    pass


@dataclass(frozen=True, kw_only=True)
class BoltSpec(SlidingWindowSpec):
    pass


@dataclass(frozen=True, kw_only=True)
class DiamondSpec(SlidingWindowSpec, AcmeSpec):
    pass


BUILT_IN = {
    FullAttentionSpec: (FullAttentionManager, FullAttentionSpec),
    MLAAttentionSpec: (FullAttentionManager, FullAttentionSpec),
    HiddenStateCacheSpec: (FullAttentionManager, FullAttentionSpec),
    TQFullAttentionSpec: (FullAttentionManager, FullAttentionSpec),
    SinkFullAttentionSpec: (SinkFullAttentionManager, FullAttentionSpec),
    SlidingWindowSpec: (SlidingWindowManager, SlidingWindowSpec),
    SlidingWindowMLASpec: (SlidingWindowManager, SlidingWindowMLASpec),
    ChunkedLocalAttentionSpec: (ChunkedLocalAttentionManager, ChunkedLocalAttentionSpec),
    MambaSpec: (MambaManager, MambaSpec),
    CrossAttentionSpec: (CrossAttentionManager, CrossAttentionSpec),
}
CLASSES: list[type[KVCacheSpec]] = [
    *BUILT_IN,
    KVCacheSpec,
    AttentionSpec,
    EncoderOnlyAttentionSpec,
    AcmeSpec,
    AcmeChildSpec,
    BoltSpec,
    DiamondSpec,
]


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    set_current_platform(Platform)
    with Registry.snapshot():
        yield
    set_current_platform(None)


def table() -> dict[type[KVCacheSpec], KVCacheSpecMetadata | None]:
    return {spec_class: Registry.get_metadata(spec_class) for spec_class in CLASSES}


def entry(spec_class: type[KVCacheSpec]) -> tuple[type, type] | None:
    metadata = Registry.get_metadata(spec_class)
    return None if metadata is None else (metadata.manager_class, metadata.uniform_type_base_spec)


def use_hook(hook: Callable[[], None]) -> list[object]:
    """Install a platform with this hook. Returns a list that gets the configuration of each call."""
    calls: list[object] = []

    class HookPlatform(Platform):
        @classmethod
        def register_custom_kv_cache_specs(cls, vllm_config: object = None) -> None:
            calls.append(vllm_config)
            hook()

    set_current_platform(HookPlatform)
    return calls


def test_built_in_table() -> None:
    assert {spec_class: entry(spec_class) for spec_class in BUILT_IN} == BUILT_IN
    for unknown in (KVCacheSpec, AttentionSpec, EncoderOnlyAttentionSpec):
        assert entry(unknown) is None


def test_built_ins_are_there_when_a_vendor_comes_first() -> None:
    Registry.register(AcmeSpec, AcmeManager)
    assert {spec_class: entry(spec_class) for spec_class in BUILT_IN} == BUILT_IN
    assert entry(AcmeSpec) == (AcmeManager, AcmeSpec)


def test_look_up_by_instance() -> None:
    full = FullAttentionSpec(**ATTENTION)
    assert Registry.get_manager_class(full) is FullAttentionManager
    assert Registry.get_uniform_type_base_spec(full) is FullAttentionSpec
    unknown = EncoderOnlyAttentionSpec(**ATTENTION)
    assert Registry.get_manager_class(unknown) is None
    assert Registry.get_uniform_type_base_spec(unknown) is None


def test_nearest_registered_class_answers_both_questions() -> None:
    assert entry(AcmeChildSpec) == (FullAttentionManager, FullAttentionSpec)
    assert entry(DiamondSpec) == (SlidingWindowManager, SlidingWindowSpec)
    Registry.register(AcmeSpec, AcmeManager, AttentionSpec)
    assert entry(AcmeChildSpec) == (AcmeManager, AttentionSpec)
    assert entry(DiamondSpec) == (SlidingWindowManager, SlidingWindowSpec)
    Registry.register(DiamondSpec, OtherManager)
    assert entry(DiamondSpec) == (OtherManager, DiamondSpec)


def test_the_same_again_is_a_no_op() -> None:
    Registry.register(AcmeSpec, AcmeManager)
    before = table()
    Registry.register(AcmeSpec, AcmeManager, AcmeSpec)
    Registry.register(FullAttentionSpec, FullAttentionManager)
    register_kv_cache_spec(AcmeManager)(AcmeSpec)
    assert table() == before


@pytest.mark.parametrize(
    ("arguments", "error", "names"),
    [
        ((AcmeSpec, OtherManager, AttentionSpec), ConflictingRegistrationError, "AcmeSpec"),
        ((AcmeSpec, AcmeManager), ConflictingRegistrationError, "AcmeSpec"),
        ((FullAttentionSpec, AcmeManager), ConflictingRegistrationError, "FullAttentionSpec"),
        ((AcmeChildSpec,), RegistrationError, "AcmeChildSpec"),
        ((AcmeChildSpec, None, AcmeSpec), RegistrationError, "AcmeChildSpec"),
        ((AcmeChildSpec, int), RegistrationError, "AcmeChildSpec"),
        (
            (AcmeChildSpec, AcmeManager, SlidingWindowSpec),
            RegistrationError,
            "AcmeChildSpec.*SlidingWindowSpec",
        ),
        ((AcmeSpec, AcmeManager, AcmeChildSpec), RegistrationError, "AcmeSpec"),
        ((AcmeChildSpec, AcmeManager, object), RegistrationError, "AcmeChildSpec"),
        ((int, AcmeManager), RegistrationError, "int"),
        (("AcmeSpec", AcmeManager), RegistrationError, "AcmeSpec"),
        (("AcmeSpec",), RegistrationError, "AcmeSpec"),
    ],
)
def test_refusals_change_nothing(arguments: tuple[Any, ...], error: type[Exception], names: str) -> None:
    Registry.register(AcmeSpec, AcmeManager, AttentionSpec)
    before = table()
    with pytest.raises(error, match=names):
        Registry.register(*arguments)
    assert table() == before


def test_check_names_layer_and_class() -> None:
    full, unknown = FullAttentionSpec(**ATTENTION), EncoderOnlyAttentionSpec(**ATTENTION)
    Registry.check_kv_cache_spec_registry({})
    Registry.check_kv_cache_spec_registry({"a": full})
    with pytest.raises(UnregisteredSpecError, match=r"'layers\.1'.*EncoderOnlyAttentionSpec"):
        Registry.check_kv_cache_spec_registry({"layers.0": full, "layers.1": unknown})


# --- override and substitutes


def test_override_replaces_what_is_given_and_keeps_the_rest() -> None:
    Registry.override(FullAttentionSpec, AcmeManager)
    assert entry(FullAttentionSpec) == (AcmeManager, FullAttentionSpec)
    assert entry(AcmeChildSpec) == (AcmeManager, FullAttentionSpec)
    assert entry(MLAAttentionSpec) == (FullAttentionManager, FullAttentionSpec)
    Registry.override(FullAttentionSpec, uniform_type_base_spec=AttentionSpec)
    assert entry(AcmeChildSpec) == (AcmeManager, AttentionSpec)


def test_a_registration_repeated_after_an_override_is_still_a_no_op() -> None:
    Registry.override(FullAttentionSpec, AcmeManager)
    Registry.register(FullAttentionSpec, FullAttentionManager)
    assert entry(FullAttentionSpec) == (AcmeManager, FullAttentionSpec)
    with pytest.raises(ConflictingRegistrationError):
        Registry.register(FullAttentionSpec, AcmeManager)


@pytest.mark.parametrize(
    ("arguments", "error", "names"),
    [
        ({"kvcache_spec_cls": AcmeSpec, "manager_class": AcmeManager}, UnregisteredSpecError, "AcmeSpec"),
        ({"kvcache_spec_cls": FullAttentionSpec}, RegistrationError, "FullAttentionSpec"),
        ({"kvcache_spec_cls": FullAttentionSpec, "substitute": None}, RegistrationError, "remove_substitute"),
        ({"kvcache_spec_cls": FullAttentionSpec, "manager_class": int}, RegistrationError, "manager_class"),
        (
            {"kvcache_spec_cls": FullAttentionSpec, "uniform_type_base_spec": MambaSpec},
            RegistrationError,
            "FullAttentionSpec.*MambaSpec",
        ),
        (
            # The call must change nothing, although its manager class alone would be valid.
            {"kvcache_spec_cls": FullAttentionSpec, "manager_class": AcmeManager, "substitute": BoltSpec},
            RegistrationError,
            "FullAttentionSpec.*BoltSpec",
        ),
        (
            {"kvcache_spec_cls": FullAttentionSpec, "substitute": FullAttentionSpec},
            RegistrationError,
            "FullAttentionSpec cannot be its own substitute",
        ),
        ({"kvcache_spec_cls": FullAttentionSpec, "substitute": 3}, RegistrationError, "FullAttentionSpec"),
        ({"kvcache_spec_cls": 3, "manager_class": AcmeManager}, RegistrationError, "3"),
    ],
)
def test_override_refusals_change_nothing(
    arguments: dict[str, Any], error: type[Exception], names: str
) -> None:
    before = table()
    with pytest.raises(error, match=names):
        Registry.override(**arguments)
    assert table() == before
    full = FullAttentionSpec(**ATTENTION)
    assert Registry.resolve(full) is full


def test_substitute_keeps_every_field_of_the_exact_class() -> None:
    Registry.override(FullAttentionSpec, substitute=AcmeSpec)
    full = FullAttentionSpec(**ATTENTION, head_size_v=4, sliding_window=64, page_size_padded=4096)
    assert Registry.resolve(full) == AcmeSpec(
        **ATTENTION, head_size_v=4, sliding_window=64, page_size_padded=4096
    )
    for other in (MLAAttentionSpec(**ATTENTION), AcmeSpec(**ATTENTION), AcmeChildSpec(**ATTENTION)):
        assert Registry.resolve(other) is other
    # The entry of the replaced class stays. A substitute has its own entry, here inherited from its parent.
    assert entry(FullAttentionSpec) == (FullAttentionManager, FullAttentionSpec)


def test_substitutes_chain_and_are_undone_one_by_one() -> None:
    Registry.register(AcmeSpec, AcmeManager, FullAttentionSpec)
    Registry.override(FullAttentionSpec, substitute=AcmeSpec)
    Registry.override(AcmeSpec, substitute=AcmeChildSpec)
    full = FullAttentionSpec(**ATTENTION)
    assert type(Registry.resolve(full)) is AcmeChildSpec
    assert type(Registry.resolve(AcmeSpec(**ATTENTION, tile=7))) is AcmeChildSpec
    assert Registry.resolve(AcmeSpec(**ATTENTION, tile=7)) == AcmeChildSpec(**ATTENTION, tile=7)
    with pytest.raises(
        RegistrationError, match=r"substitute of AcmeSpec must be a subclass of AcmeSpec.*\.FullAttentionSpec"
    ):
        Registry.override(AcmeSpec, substitute=FullAttentionSpec)
    Registry.remove_substitute(AcmeSpec)
    assert type(Registry.resolve(full)) is AcmeSpec
    Registry.remove_substitute(FullAttentionSpec)
    assert Registry.resolve(full) is full
    with pytest.raises(RegistrationError, match="FullAttentionSpec"):
        Registry.remove_substitute(FullAttentionSpec)


def test_a_substitute_must_be_buildable_from_the_fields_it_gets() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Demanding(FullAttentionSpec):
        tile: int

    with pytest.raises(RegistrationError, match=r"Demanding.*tile"):
        Registry.override(FullAttentionSpec, substitute=Demanding)


def test_manager_and_substitute_in_one_override() -> None:
    Registry.override(FullAttentionSpec, AcmeManager, substitute=AcmeSpec)
    resolved = Registry.resolve(FullAttentionSpec(**ATTENTION))
    assert Registry.get_manager_class(resolved) is AcmeManager


def test_decorator() -> None:
    assert register_kv_cache_spec(AcmeManager, FullAttentionSpec)(AcmeSpec) is AcmeSpec
    assert entry(AcmeChildSpec) == (AcmeManager, FullAttentionSpec)
    with pytest.raises(ConflictingRegistrationError, match="AcmeSpec"):
        register_kv_cache_spec(OtherManager, FullAttentionSpec)(AcmeSpec)
    with pytest.raises(RegistrationError, match="BoltSpec"):
        register_kv_cache_spec()(BoltSpec)


def test_decorator_that_overrides() -> None:
    register_kv_cache_spec(AcmeManager, override=True)(AcmeSpec)
    assert entry(AcmeSpec) == (AcmeManager, AcmeSpec)
    register_kv_cache_spec(OtherManager, override=True)(AcmeSpec)
    assert entry(AcmeSpec) == (OtherManager, AcmeSpec)
    register_kv_cache_spec(AcmeManager, override=True)(AcmeSpec)
    assert entry(AcmeSpec) == (AcmeManager, AcmeSpec)


# --- the platform's hook

LOOK_UPS: list[Callable[[], object]] = [
    lambda: Registry.get_metadata(FullAttentionSpec),
    lambda: Registry.get_manager_class(FullAttentionSpec(**ATTENTION)),
    lambda: Registry.get_uniform_type_base_spec(FullAttentionSpec(**ATTENTION)),
    lambda: Registry.check_kv_cache_spec_registry({}),
    lambda: Registry.resolve(FullAttentionSpec(**ATTENTION)),
    lambda: is_uniform_with_collection(FullAttentionSpec(**ATTENTION), {}),
    register_all_kvcache_specs,
]


@pytest.mark.parametrize("look_up", LOOK_UPS)
def test_hook_runs_once_before_any_look_up(look_up: Callable[[], object]) -> None:
    calls = use_hook(lambda: Registry.override(FullAttentionSpec, AcmeManager))
    assert calls == []
    look_up()
    assert calls == [None]
    assert entry(FullAttentionSpec) == (AcmeManager, FullAttentionSpec)
    for again in LOOK_UPS:
        again()
    assert calls == [None]


def test_registering_does_not_run_the_hook() -> None:
    calls = use_hook(lambda: None)
    Registry.register(AcmeSpec, AcmeManager)
    Registry.override(AcmeSpec, OtherManager, substitute=AcmeChildSpec)
    Registry.remove_substitute(AcmeSpec)
    assert calls == []


def test_hook_gets_the_configuration() -> None:
    calls = use_hook(lambda: None)
    config = object()
    register_all_kvcache_specs(config)
    register_all_kvcache_specs(object())
    assert calls == [config]


def test_hook_may_look_up_and_initialise() -> None:
    seen: list[object] = []

    def hook() -> None:
        Registry.register(AcmeSpec, AcmeManager)
        seen.append(entry(AcmeSpec))
        seen.append(entry(FullAttentionSpec))
        register_all_kvcache_specs()

    calls = use_hook(hook)
    register_all_kvcache_specs()
    assert seen == [(AcmeManager, AcmeSpec), BUILT_IN[FullAttentionSpec]]
    assert calls == [None]


def test_a_failing_hook_leaves_nothing_and_is_asked_again() -> None:
    fail = True

    def hook() -> None:
        Registry.register(AcmeSpec, AcmeManager)
        Registry.override(FullAttentionSpec, AcmeManager, substitute=AcmeSpec)
        if fail:
            raise OSError("no device")

    calls = use_hook(hook)
    for _ in range(2):
        with pytest.raises(PlatformError, match=r"HookPlatform.*OSError: no device"):
            register_all_kvcache_specs()
    set_current_platform(Platform)
    assert entry(AcmeSpec) == entry(FullAttentionSpec) == BUILT_IN[FullAttentionSpec]
    full = FullAttentionSpec(**ATTENTION)
    assert Registry.resolve(full) is full
    fail = False
    calls = use_hook(hook)
    assert entry(AcmeSpec) == (AcmeManager, AcmeSpec)
    assert len(calls) == 1


def test_a_hook_that_conflicts_is_named() -> None:
    Registry.register(AcmeSpec, AcmeManager)
    use_hook(lambda: Registry.register(AcmeSpec, OtherManager))
    with pytest.raises(PlatformError, match=r"HookPlatform.*AcmeSpec"):
        register_all_kvcache_specs()


def test_a_platform_set_late_is_asked_too() -> None:
    assert entry(AcmeSpec) == BUILT_IN[FullAttentionSpec]
    use_hook(lambda: Registry.register(AcmeSpec, AcmeManager))
    assert entry(AcmeSpec) == (AcmeManager, AcmeSpec)


def test_snapshot_restores_everything() -> None:
    calls = use_hook(lambda: Registry.register(BoltSpec, AcmeManager))

    def fail_in_a_snapshot() -> None:
        with Registry.snapshot():
            Registry.register(AcmeSpec, AcmeManager)
            Registry.override(FullAttentionSpec, OtherManager, substitute=AcmeSpec)
            register_all_kvcache_specs()
            raise KeyError

    with pytest.raises(KeyError):
        fail_in_a_snapshot()
    set_current_platform(Platform)
    assert entry(AcmeSpec) == entry(FullAttentionSpec) == BUILT_IN[FullAttentionSpec]
    assert entry(BoltSpec) == BUILT_IN[SlidingWindowSpec]
    assert len(calls) == 1
    calls = use_hook(lambda: None)
    register_all_kvcache_specs()
    assert len(calls) == 1


@given(data=st.data())
def test_order_of_registrations_does_not_matter(data: st.DataObject) -> None:
    steps: list[Callable[[], object]] = [
        lambda: Registry.register(AcmeChildSpec, AcmeManager, AcmeSpec),
        lambda: register_kv_cache_spec(OtherManager, AttentionSpec)(AcmeSpec),
        lambda: Registry.register(DiamondSpec, AcmeManager),
        lambda: Registry.register(SlidingWindowSpec, SlidingWindowManager),
        lambda: Registry.register(AcmeSpec, OtherManager, AttentionSpec),
        register_all_kvcache_specs,
        table,
    ]
    tables = []
    for order in (steps, data.draw(st.permutations(steps), label="order")):
        with Registry.snapshot():
            use_hook(lambda: Registry.register(BoltSpec, AcmeManager))
            for step in order:
                step()
            tables.append(table())
    assert tables[0] == tables[1]


# --- threads


def test_no_thread_sees_a_table_without_the_hook() -> None:
    for _ in range(20):
        with Registry.snapshot():

            def hook() -> None:
                Registry.register(AcmeSpec, AcmeManager)
                time.sleep(0.002)
                Registry.override(FullAttentionSpec, AcmeManager)

            calls = use_hook(hook)
            start = threading.Barrier(8)

            def look_up(_: int, start: threading.Barrier = start) -> tuple[object, object]:
                start.wait(10)
                return entry(AcmeSpec), entry(FullAttentionSpec)

            with ThreadPoolExecutor(8) as threads:
                seen = set(threads.map(look_up, range(8)))
            assert seen == {((AcmeManager, AcmeSpec), (AcmeManager, FullAttentionSpec))}
            assert len(calls) == 1


def test_a_failed_hook_wakes_the_waiting_threads() -> None:
    def hook() -> None:
        time.sleep(0.01)
        raise OSError("no device")

    use_hook(hook)

    def look_up(_: int) -> type[Exception] | None:
        try:
            register_all_kvcache_specs()
        except PlatformError as error:
            return type(error)
        return None

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(look_up, range(4))) == {PlatformError}


def test_registering_does_not_wait_for_a_hook() -> None:
    # A hook may import a module while another thread imports it, and that import registers a class.
    registered = threading.Event()

    def other() -> None:
        Registry.register(BoltSpec, SlidingWindowManager)
        registered.set()

    def hook() -> None:
        Registry.register(AcmeSpec, AcmeManager)
        thread = threading.Thread(target=other)
        thread.start()
        assert registered.wait(10)
        thread.join()
        assert entry(BoltSpec) == BUILT_IN[SlidingWindowSpec]  # this thread does not see it yet

    use_hook(hook)
    register_all_kvcache_specs()
    assert entry(AcmeSpec) == (AcmeManager, AcmeSpec)
    assert entry(BoltSpec) == (SlidingWindowManager, BoltSpec)


def test_threads_that_conflict_leave_one_winner() -> None:
    managers = [type(f"Manager{i}", (FullAttentionManager,), {}) for i in range(8)]
    start = threading.Barrier(8)

    def register(manager: type[FullAttentionManager]) -> bool:
        start.wait(10)
        try:
            Registry.register(AcmeSpec, manager)
        except ConflictingRegistrationError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(register, managers))
    assert won.count(True) == 1
    assert entry(AcmeSpec) == (managers[won.index(True)], AcmeSpec)


# --- other processes

REFUSALS = """
import sys
assert False, "this process must run with -O"  # the control: asserts are off
from kvref.errors import *
from kvref.managers import *
from kvref.registry import *
from kvref.pool import BlockPool
from kvref.specs import *
import torch
class Mine(FullAttentionManager): pass
a = dict(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float16)
full, window = FullAttentionSpec(**a), SlidingWindowSpec(**a, sliding_window=8)
R = KVCacheSpecRegistry
refusals = [
    lambda: R.register(FullAttentionSpec, Mine),
    lambda: R.register(FullAttentionSpec),
    lambda: R.register(FullAttentionSpec, FullAttentionManager, MambaSpec),
    lambda: R.override(EncoderOnlyAttentionSpec, Mine),
    lambda: R.override(FullAttentionSpec, substitute=FullAttentionSpec),
    lambda: R.check_kv_cache_spec_registry({"a": EncoderOnlyAttentionSpec(**a)}),
    lambda: FullAttentionSpec(**{**a, "block_size": 0}),
    lambda: FullAttentionSpec(**a, page_size_padded=1),
    lambda: FullAttentionSpec.merge([]),
    lambda: FullAttentionSpec.merge([full, MLAAttentionSpec(**a)]),
    lambda: SlidingWindowSpec.merge([window, SlidingWindowSpec(**a, sliding_window=9)]),
    lambda: FullAttentionManager(
        window,
        block_pool=BlockPool(9, True, 16),
        enable_caching=True,
        kv_cache_group_id=0,
        scheduler_block_size=16,
        limits=MemoryLimits(9, 9),
        use_eagle=False,
    ),
]
for refusal in refusals:
    try:
        refusal()
    except (ValueError, TypeError) as error:
        print(type(error).__name__)
    else:
        sys.exit(f"not refused: refusal {refusals.index(refusal)}")
print(R.get_manager_class(full).__name__)
"""


def run(code: str, *flags: str) -> list[str]:
    command = [sys.executable, "-W", "ignore", *flags, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_refusals_survive_optimisation() -> None:
    assert run(REFUSALS, "-O") == [
        "ConflictingRegistrationError",
        "RegistrationError",
        "RegistrationError",
        "UnregisteredSpecError",
        "RegistrationError",
        "UnregisteredSpecError",
        "InvalidSpecError",
        "InvalidSpecError",
        "SpecMergeError",
        "SpecMergeError",
        "SpecMergeError",
        "SpecKindError",
        "FullAttentionManager",
    ]


def test_a_fresh_process_has_the_built_in_table() -> None:
    code = (
        "from kvref.specs import *\nfrom kvref.registry import KVCacheSpecRegistry as R\n"
        "for c in KVCacheSpec.__subclasses__()[0].__subclasses__(): print(c.__name__)\n"
        "for c in (FullAttentionSpec, SlidingWindowMLASpec, CrossAttentionSpec):\n"
        "    print(R.get_metadata(c).manager_class.__name__)\n"
    )
    assert run(code)[-3:] == ["FullAttentionManager", "SlidingWindowManager", "CrossAttentionManager"]
