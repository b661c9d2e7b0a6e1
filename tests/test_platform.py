from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvref.errors import PlatformError
from kvref.platform import (
    ENTRY_POINT_GROUP,
    ENVIRONMENT_VARIABLE,
    Platform,
    current_platform,
    set_current_platform,
)

Install = Callable[..., None]


@pytest.fixture(autouse=True)
def _no_platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    set_current_platform(None)
    yield
    set_current_platform(None)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a plugin with the given entry point and source, as a distribution on the import path."""
    modules: list[str] = []

    def _install(name: str, source: str, attribute: str = "ThePlatform") -> None:
        module = f"kvref_test_{name}"
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{name} = {module}:{attribute}\n")

    monkeypatch.syspath_prepend(tmp_path)
    yield _install
    for module in modules:
        sys.modules.pop(module, None)


GOOD = "from kvref.platform import Platform\nclass ThePlatform(Platform):\n    pass\n"


def test_without_plugins_the_default() -> None:
    assert current_platform() is Platform
    assert Platform.register_custom_kv_cache_specs(None) is None


def test_one_plugin_is_found(install: Install) -> None:
    install("acme", GOOD)
    assert current_platform().__module__ == "kvref_test_acme"
    assert current_platform() is current_platform()


def test_several_plugins_need_a_choice(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("acme", GOOD)
    install("bolt", GOOD)
    with pytest.raises(PlatformError, match=rf"acme.*bolt.*{ENVIRONMENT_VARIABLE}"):
        current_platform()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "bolt")
    assert current_platform().__module__ == "kvref_test_bolt"


def test_an_unknown_choice_names_the_installed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "bolt")
    with pytest.raises(PlatformError, match=r"'bolt'.*none"):
        current_platform()
    install("acme", GOOD)
    with pytest.raises(PlatformError, match=r"'bolt'.*acme"):
        current_platform()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no device')", "RuntimeError: no device"),
        ("import kvref_test_missing_module", "ModuleNotFoundError"),
        ("", "AttributeError"),
        ("ThePlatform = 3", "must name a subclass"),
        ("class ThePlatform: pass", "must name a subclass"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named(install: Install, source: str, reason: str) -> None:
    install("acme", source)
    for _ in range(2):  # a failure is not remembered, so the second call fails, too
        with pytest.raises(PlatformError, match=f"'acme'.*{reason}"):
            current_platform()


def test_a_plugin_may_register_while_it_is_imported(install: Install) -> None:
    from kvref.registry import KVCacheSpecRegistry

    install(
        "acme",
        "from dataclasses import dataclass\n"
        "from kvref.managers import FullAttentionManager\n"
        "from kvref.registry import register_kv_cache_spec\n"
        "from kvref.specs import FullAttentionSpec\n"
        "@register_kv_cache_spec(FullAttentionManager)\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class AcmeSpec(FullAttentionSpec):\n"
        "    pass\n" + GOOD,
    )
    with KVCacheSpecRegistry.snapshot():
        platform = current_platform()
        spec_class = sys.modules[platform.__module__].AcmeSpec
        entry = KVCacheSpecRegistry.get_metadata(spec_class)
        assert entry is not None
        assert entry.uniform_type_base_spec is spec_class


def test_a_plugin_that_looks_up_while_it_is_imported_fails_clearly(install: Install) -> None:
    install(
        "acme",
        "from kvref.registry import KVCacheSpecRegistry\n"
        "from kvref.specs import FullAttentionSpec\n"
        "KVCacheSpecRegistry.get_metadata(FullAttentionSpec)\n" + GOOD,
    )
    with pytest.raises(PlatformError, match="'acme'"):
        current_platform()


def test_setting_one_wins_over_plugins(install: Install) -> None:
    class Mine(Platform):
        pass

    install("acme", GOOD)
    set_current_platform(Mine)
    assert current_platform() is Mine
    set_current_platform(None)
    assert current_platform().__module__ == "kvref_test_acme"


@pytest.mark.parametrize("nonsense", [object, 3, Platform()])
def test_setting_nonsense_is_refused(nonsense: type[Platform]) -> None:
    with pytest.raises(PlatformError, match="subclass"):
        set_current_platform(nonsense)
    assert current_platform() is Platform
