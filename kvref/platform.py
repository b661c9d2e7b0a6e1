"""Platforms: a plugin for some hardware subclasses `Platform` to register its own specs and managers.

The plugin names the subclass in the entry-point group `kvref.platforms`:

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
"""This environment variable names the entry point to use. You need it if several plugins are installed."""


class Platform:
    """The default platform, without specs of its own. Plugins subclass it. It has no instances."""

    @classmethod
    def register_custom_kv_cache_specs(cls, vllm_config: object = None) -> None:
        """Hook: register, override or substitute specs in `kvref.registry` (vLLM PR 37505).

        The registry calls the hook of a platform once in a process, before the first look-up. When the hook
        returns, other threads see everything that it registered. If the hook raises an exception, the
        registry keeps nothing. The hook must not wait for another thread that makes a look-up, because that
        thread waits for the hook.

        Args:
            vllm_config: the argument of `register_all_kvcache_specs`; None if a look-up came first.
        """


_lock = threading.Lock()
_current: type[Platform] | None = None


def current_platform() -> type[Platform]:
    """The platform in use: the one that was set, or else the installed plugin's, or else `Platform` itself.

    Raises:
        PlatformError: the plugin cannot be loaded; several plugins are installed and `KVREF_PLATFORM` chooses
            none of them; or the chosen plugin is not installed.
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
        PlatformError: `platform` is no subclass of `Platform`.
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
