"""Load vLLM with a platform plugin.

Stand-alone programs copy functions from this module. So at the top, it imports only the standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from platform import machine
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

NO_PLUGIN = "-Xkvref-no-plugin"
"""An interpreter flag. A process with this flag does not load the plugin, so that laws can compare."""


def plugin_is_left_out() -> bool:
    return "kvref-no-plugin" in sys._xoptions


class Stub(ModuleType):
    """A substitute for a module that needs hardware. Each attribute is a mock, the same at each access."""

    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Stubs(MetaPathFinder, Loader):
    """An import finder that makes stubs for the given packages and for all their submodules."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if any(fullname == package or fullname.startswith(f"{package}.") for package in self.packages):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def refuse_kernels() -> None:
    """Prevent the import of vLLM's compiled CPU kernels if that import would kill the process.

    `vllm._C` needs a CPU that has AVX-512 with bfloat16. But `Platform.import_kernels`, which the platform of
    a plugin inherits, imports it on every CPU. vLLM runs without that module, and no law calls a kernel.
    """
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return
    if machine() == "x86_64" and "avx512_bf16" not in flags:
        sys.modules.setdefault("vllm._C", None)  # type: ignore[arg-type]


def use_plugin(
    entry_points: Sequence[str],
    stubs: Sequence[str],
    modules: Sequence[str],
    renamed: Mapping[str, str],
    initialise: bool,
) -> None:
    """Import vLLM with these plugins and no others, as an engine does.

    Args:
        entry_points: the plugins' names in vLLM's entry-point groups, platform and general.
        stubs: packages to replace by stubs.
        modules: the modules that define the plugin's spec and manager classes. They are imported last.
        renamed: maps classes of the plugin, as `module:class`, to new names. They need new ones if another
            class, of vLLM for example, has the same name.
        initialise: whether to run the platform's hook before `modules` are imported.
    """
    if plugin_is_left_out():
        os.environ["VLLM_PLUGINS"] = ""
        return
    os.environ["VLLM_PLUGINS"] = ",".join(entry_points)
    if not any(isinstance(finder, Stubs) for finder in sys.meta_path):
        sys.meta_path.insert(0, Stubs(stubs))
    refuse_kernels()
    import_module("vllm")
    _ = import_module("vllm.platforms").current_platform
    import_module("vllm.plugins").load_general_plugins()
    if initialise:
        import_module("vllm.v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(None)
    for module in modules:
        import_module(module)
    for place, name in renamed.items():
        module, _, class_name = place.partition(":")
        getattr(sys.modules[module], class_name).__name__ = name
