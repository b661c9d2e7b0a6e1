"""Platforms: how a plugin for some hardware brings its own KV-cache specs and managers.

A plugin subclasses `Platform` and names the subclass in the entry-point group `kvref.platforms`:

    [project.entry-points."kvref.platforms"]
    acme = "acme_kvref.platform:AcmePlatform"
"""

from __future__ import annotations

import os
import threading
from importlib.metadata import EntryPoint, entry_points
from typing import TypeGuard

from kvref.errors import PlatformError

__all__ = [
    "ENTRY_POINT_GROUP",
    "ENVIRONMENT_VARIABLE",
    "Platform",
    "current_platform",
    "set_current_platform",
]

ENTRY_POINT_GROUP = "kvref.platforms"
ENVIRONMENT_VARIABLE = "KVREF_PLATFORM"
"""Names the entry point to use; needed when several plugins are installed."""


class Platform:
    """A platform without specs of its own. A plugin subclasses it; nobody makes an instance."""

    @classmethod
    def register_custom_kv_cache_specs(cls, vllm_config: object = None) -> None:
        """Register, override or substitute specs in `kvref.registry` (vLLM PR 37505).

        The registry runs this hook once for each platform in a process, before its first look-up. Other
        threads see all that the hook registers when it returns. If it raises, none of it is kept. The hook
        must not wait for another thread that looks something up: that thread waits for the hook.

        Args:
            vllm_config: the argument of `register_all_kvcache_specs`; None if a look-up came first.
        """


_lock = threading.Lock()
_current: type[Platform] | None = None


def current_platform() -> type[Platform]:
    """The platform in use: the one that was set, or else the installed plugin's, or else `Platform` itself.

    Raises:
        PlatformError: the plugin cannot be loaded; several are installed and none is chosen; or the chosen
            one is not installed.
    """
    global _current
    platform = _current
    if platform is None:
        # Without the lock: loading a plugin runs its code, which may call this function.
        discovered = _discover()
        with _lock:
            if _current is None:
                _current = discovered
            platform = _current
    return platform


def set_current_platform(platform: type[Platform] | None) -> None:
    """Use this platform from now on. With None, `current_platform` searches for plugins again.

    Raises:
        PlatformError: it is no subclass of `Platform`.
    """
    global _current
    if platform is not None and not _is_platform(platform):
        raise PlatformError(f"a platform must be a subclass of kvref.platform.Platform, not {platform!r}")
    with _lock:
        _current = platform


def _discover() -> type[Platform]:
    installed = list(entry_points(group=ENTRY_POINT_GROUP))
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    entries = [entry for entry in installed if entry.name == chosen] if chosen else installed
    if chosen and not entries:
        raise PlatformError(
            f"{ENVIRONMENT_VARIABLE} is {chosen!r}, but no plugin of this name is installed; "
            f"choose one of: {_names(installed) or 'none'}"
        )
    match entries:
        case []:
            return Platform
        case [entry]:
            return _load(entry)
    raise PlatformError(
        f"several platform plugins are installed: {_names(entries)}; "
        f"choose one by its name in the environment variable {ENVIRONMENT_VARIABLE}"
    )


def _load(entry: EntryPoint) -> type[Platform]:
    try:
        platform: object = entry.load()
    except Exception as error:
        raise PlatformError(
            f"platform plugin {entry.name!r} ({entry.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}; fix or uninstall it"
        ) from error
    if not _is_platform(platform):
        raise PlatformError(
            f"platform plugin {entry.name!r} ({entry.value}) must name a subclass of "
            f"kvref.platform.Platform, not {platform!r}"
        )
    return platform


def _is_platform(platform: object) -> TypeGuard[type[Platform]]:
    return Platform in getattr(platform, "__mro__", ())


def _names(entries: list[EntryPoint]) -> str:
    return ", ".join(sorted(f"{entry.name} ({entry.value})" for entry in entries))
