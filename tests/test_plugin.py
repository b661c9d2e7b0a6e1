"""A target with a plugin: what is judged, what is inherited, and which plugins cannot be loaded."""

import io
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from kvref_conformance.documents.baseline import NO_BASELINE
from kvref_conformance.documents.results import Result, Status, Verdict
from kvref_conformance.laws.core import LawBroken
from kvref_conformance.laws.drift import hook_once, patch_target, signature, takes
from kvref_conformance.processes.launch import Launch, TargetFailed
from kvref_conformance.report.junit import junit
from kvref_conformance.report.progress import progress
from kvref_conformance.report.terminal import render
from kvref_conformance.running.checker import Options
from kvref_conformance.running.inherited import same_facet, stock_trace
from kvref_conformance.running.loading import loaded, select_laws
from kvref_conformance.targets import UnknownTarget, check_name, operations_module, plugin_of, plugins
from kvref_conformance.targets.introspection import (
    are_read,
    calls_in,
    is_present,
    overrides_of,
    parameters_of,
    recording,
)
from kvref_conformance.targets.plugins import NO_PLUGIN

PLUGGED = "kvref_conformance.targets.faults.plugin:plugged"


def check(target: str, *patterns: str) -> Result:
    laws = select_laws(patterns)
    with (
        progress(Console(file=io.StringIO())) as watcher,
        loaded(Launch(target), laws, watcher) as one,
    ):
        return one.check(Options(laws=laws, jobs=2), NO_BASELINE, watcher)


@cache
def plugged() -> Result:
    return check(PLUGGED, "spec.merge-identity", "spec.padding-honoured", "registry.*", "drift.*")


def test_a_plugin_that_fits_is_conformant() -> None:
    result = plugged()
    assert result.verdict is Verdict.CONFORMANT
    assert result.target["plugin"] == "acme (acme-kvref 1)"
    assert {row.status for row in result.rows} <= {Status.HOLDS, Status.NOT_APPLICABLE}
    for law in ("hook-reached", "signature", "patch-target"):
        held = [row for row in result.rows if row.law == f"drift.{law}" and row.status is Status.HOLDS]
        assert held, law
        assert all(row.examples for row in held)


def test_its_own_fields_that_are_not_varied_are_told() -> None:
    """No example would show that a merge loses this field."""
    (note,) = plugged().notes
    assert note.startswith("these fields had their defaults in all examples; ")
    assert note.endswith(": AcmeSpec.banks")


def test_only_the_classes_of_the_plugin_are_judged() -> None:
    rows = [row for row in plugged().rows if row.law.startswith("spec.")]
    assert {row.subject for row in rows} == {"AcmeSpec"}


def test_managers_are_judged_by_how_they_are_called() -> None:
    """The law compares an overriding method with the reference's calls of it."""
    row = next(row for row in plugged().rows if row.subject == "AcmeManager")
    assert (row.law, row.status, row.examples > 0) == ("drift.signature", Status.HOLDS, True)


def test_what_stock_breaks_too_is_inherited() -> None:
    result = check("kvref_conformance.targets.faults.plugin:fault_of_the_reference", "spec.merge-identity")
    (row,) = [row for row in result.rows if row.status is not Status.NOT_APPLICABLE]
    assert (row.subject, row.facet, row.status) == ("AcmeSpec", "alignment", Status.INHERITED)
    assert row.message.startswith("reference breaks it without the plugin: ")
    assert result.verdict is Verdict.CONFORMANT
    told = io.StringIO()
    render(result, Console(file=told, width=100), verbose=True)
    assert "inherited  spec.merge-identity [AcmeSpec: alignment]" in told.getvalue()
    assert b"inherited: reference breaks it without the plugin" in junit(result)


DESCRIPTION: Any = {
    "classes": [
        {"name": "KVCacheSpec", "mro": ["KVCacheSpec"], "fields": [{"name": "block_size"}]},
        {"name": "Full", "mro": ["Full", "KVCacheSpec"], "fields": [{"name": "block_size"}]},
        {
            "name": "Acme",
            "mro": ["Acme", "Full", "KVCacheSpec"],
            "fields": [{"name": "block_size"}, {"name": "banks"}],
            "origin": "plugin",
        },
    ],
    "managers": ["FullManager", "AcmeManager", "OddManager"],
    "plugin": {"managers": {"AcmeManager": ["FullManager", "Manager"], "OddManager": ["Manager"]}},
}


def test_a_trace_for_stock_has_no_class_and_no_field_of_the_plugin() -> None:
    spec = {"class": "Acme", "fields": {"block_size": 16, "banks": 2}}
    register = {"spec_class": "Acme", "manager": "AcmeManager", "base": None}
    trace = {
        "runs": [
            {
                "flags": ["-O"],
                "operations": [
                    {"op": "specs.merge", "args": {"specs": [spec, spec]}},
                    {"op": "registry.register", "args": register},
                    {"op": "registry.register", "args": {**register, "manager": "OddManager"}},
                ],
            }
        ]
    }
    (run,) = stock_trace(trace, DESCRIPTION)["runs"]
    stock = {"class": "Full", "fields": {"block_size": 16}}
    registered = {"spec_class": "Full", "manager": "FullManager", "base": None}
    assert run == {
        "flags": ["-O", NO_PLUGIN],
        "operations": [
            {"op": "specs.merge", "args": {"specs": [stock, stock]}},
            {"op": "registry.register", "args": registered},
            {"op": "registry.register", "args": registered},
        ],
    }


def test_nor_has_a_class_that_the_trace_derives_from_it() -> None:
    derived = {"name": "Vendor", "base": "Acme", "fields": {"own": 0}}
    spec = {"class": "Vendor", "fields": {"block_size": 16, "banks": 2, "own": 1}}
    operations = [{"op": "specs.derive", "args": derived}, {"op": "specs.build", "args": {"spec": spec}}]
    (run,) = stock_trace({"runs": [{"flags": [], "operations": operations}]}, DESCRIPTION)["runs"]
    assert [operation["args"] for operation in run["operations"]] == [
        {"name": "Vendor", "base": "Full", "fields": {"own": 0}},
        {"spec": {"class": "Vendor", "fields": {"block_size": 16, "own": 1}}},
    ]


def test_a_facet_that_names_classes_is_the_same_without_the_plugin() -> None:
    assert same_facet("banks", "banks", DESCRIPTION)
    assert same_facet("Acme and Vendor", "Full and Vendor", DESCRIPTION)
    # A facet lists classes by name, so the stock class stands in another place.
    assert same_facet("Acme and Elder", "Elder and Full", DESCRIPTION)
    assert not same_facet("Acme and Vendor", "Full", DESCRIPTION)
    assert not same_facet("Acme and Vendor", "Full and Elder", DESCRIPTION)


# -- inspecting code -----------------------------------------------------------------------------------------


class Core:
    def plain(self, first: int, second: int = 0, *, third: int = 0) -> int:
        return first

    @classmethod
    def of_class(cls, name: str) -> str:
        return name

    @property
    def size(self) -> int:
        return self.plain(1)


class Plugin(Core):
    def plain(self, first: int) -> int:  # type: ignore[override]
        return first

    def of_class(self, name: str) -> str:  # type: ignore[override]
        return name

    def own(self) -> None:
        """The core has no method of this name."""


Plugin.__module__ = "vendor.plugin"


def test_overrides_are_those_of_the_core() -> None:
    found = {one["name"]: one for one in overrides_of(Plugin, "test_plugin")}
    assert list(found) == ["plain", "of_class"]
    assert found["plain"]["core_class"] == "Core"
    assert (found["of_class"]["kind"], found["of_class"]["core_kind"]) == ("method", "class method")
    assert overrides_of(Core, "test_plugin") == []


@pytest.mark.parametrize(
    ("positional", "keywords", "taken"),
    [(1, [], True), (2, ["third"], True), (1, ["second"], True), (3, [], False), (1, ["first"], False)],
)
def test_calls_are_bound_as_python_binds_them(positional: int, keywords: list[str], taken: bool) -> None:
    call = {"positional": positional, "keywords": keywords, "open": False}
    parameters: Any = parameters_of(Core.__dict__["plain"])
    assert takes(parameters, call) is taken


def test_calls_are_found_by_reading(tmp_path: Path) -> None:
    (tmp_path / "core.py").write_text(
        "def f(spec, manager, rest):\n"
        "    manager.plain(1, second=2)\n"
        "    manager.plain(3, second=4)\n"
        "    manager.plain(*rest)\n"
        "    super().plain(1)\n"
        "    Core.plain(spec, 1)\n"
        "    manager.other(1)\n"
    )
    found = calls_in(str(tmp_path), ["plain"])
    assert [(call["positional"], call["keywords"], call["open"]) for call in found] == [
        (1, ["second"], False),
        (0, [], True),
    ]
    assert found[0]["place"] == f"{tmp_path.name}/core.py:2"


def test_names_are_read_or_only_assigned(tmp_path: Path) -> None:
    (tmp_path / "vendor.py").write_text(
        "import core\ncore.assigned = 1\ncore.read(2)\ngetattr(core, 'named')\nfrom core import imported\n"
    )
    names = ["core:assigned", "core:read", "core:Thing.named", "core:imported", "core:absent"]
    assert are_read([str(tmp_path)], names) == [False, True, True, True, False]


def test_presence_follows_modules_and_classes() -> None:
    def load(name: str) -> Any:
        if name != "core":
            raise ImportError(name)
        return sys.modules[__name__]

    names = ["core:Core", "core:Core.plain", "core:Core.gone", "gone:Core"]
    assert [is_present(name, load) for name in names] == [True, True, False, False]


def test_what_is_reached_is_noted_on_the_class_alone() -> None:
    class Stock(Core):
        pass

    for derive in (False, True):
        seen: list[str] = []
        used = recording(Stock, ["plain", "of_class", "size"], seen.append, derive)
        assert used().size == 1
        assert used.of_class("x") == "x"
        assert seen == ["size", "plain", "of_class"]

        class Further(used):  # type: ignore[misc, valid-type]
            pass

        assert Further().size == 1
        assert seen == ["size", "plain", "of_class"]


# -- laws on made-up events ----------------------------------------------------------------------------------


def event(op: str, value: Any, **arguments: Any) -> dict[str, Any]:
    return {"op": op, "args": arguments, "outcome": {"value": value}}


def test_a_call_that_the_base_does_not_take_is_of_something_else() -> None:
    overrides = [one for one in overrides_of(Plugin, "test_plugin") if one["name"] == "plain"]

    def runs(keywords: list[str]) -> Any:
        call = {"name": "plain", "positional": 1, "keywords": keywords, "open": False, "place": "core.py:1"}
        return [[event("drift.overrides", overrides), event("drift.calls", [call])]]

    assert signature(runs([])) == 1
    assert signature(runs(["nonsense"])) == 0
    with pytest.raises(LawBroken) as broken:
        signature(runs(["third"]))
    assert broken.value.facets == ("plain",)


def test_a_method_of_the_class_must_stay_one() -> None:
    overrides = [one for one in overrides_of(Plugin, "test_plugin") if one["name"] == "of_class"]
    with pytest.raises(LawBroken, match="class method"):
        signature([[event("drift.overrides", overrides), event("drift.calls", [])]])


@pytest.mark.parametrize(
    ("present", "read", "stale", "facets"),
    [
        (True, None, [], ()),
        (True, None, ["core.b:f"], ("core.a:f stale",)),
        (False, False, [], ("core.a:f missing",)),
        (False, True, [], ()),
    ],
)
def test_patches_land(present: bool, read: bool | None, stale: list[str], facets: tuple[str, ...]) -> None:
    runs = [
        [event("drift.replaced", [{"name": "core.a:f", "by": "vendor.f", "stale": stale}])],
        [event("drift.present", [present], names=["core.a:f"])],
    ]
    if read is not None:
        runs.append([event("drift.read", [read], names=["core.a:f"])])
    if not facets:
        assert patch_target(runs) == 1
        return
    with pytest.raises(LawBroken) as broken:
        patch_target(runs)
    assert broken.value.facets == facets


@pytest.mark.parametrize(
    ("counts", "facet"),
    [((0, 1, 2), None), ((0, 1, 1), None), ((0, 0, 1), "late"), ((0, 2, 3), "again"), ((0, 1, 3), "again")],
)
def test_hook_runs_are_counted(counts: tuple[int, int, int], facet: str | None) -> None:
    lookup = event("registry.lookup", {"manager": "M", "base": "B"}, spec={"class": "Full", "fields": {}})
    first, second, third = (event("drift.hook_calls", count) for count in counts)
    runs = [[first, lookup, second, event("registry.initialise", None), third]]
    if facet is None:
        assert hook_once(runs) == 2
    else:
        with pytest.raises(LawBroken) as broken:
            hook_once(runs)
        assert broken.value.facets == (facet,)


# -- names and refusals --------------------------------------------------------------------------------------


def test_names_of_targets() -> None:
    check_name("vllm:any-name")
    assert plugin_of("vllm:any-name") == "any-name"
    assert plugin_of("vendor:any") == ""
    assert operations_module("vllm:acme", "specs") == "kvref_conformance.targets.vllm.specs"
    assert operations_module("vendor:acme", "specs") is None
    with pytest.raises(UnknownTarget, match="vllm:PLUGIN"):
        check_name("vllm:")


VLLM = {
    "vllm/__init__.py": "",
    "vllm/plugins.py": "def load_general_plugins(): pass\n",
    "vllm/platforms/__init__.py": """
import importlib
from importlib.metadata import entry_points
class CpuPlatform: pass
def choose():
    for entry in entry_points(group="vllm.platform_plugins"):
        try:
            name = entry.load()()
        except Exception:
            continue
        if name is not None:
            module, _, cls = name.rpartition(".")
            return getattr(importlib.import_module(module), cls)()
    return CpuPlatform()
_current = None
_choosing = False
def __getattr__(name):
    global _current, _choosing
    if name != "current_platform" or _choosing:
        raise AttributeError(name)
    _choosing = True
    _current = _current or choose()
    _choosing = False
    return _current
""",
    "acme/platform.py": "import acme_npu\nclass AcmePlatform: pass\n",
    "acme/early.py": "from vllm.platforms import current_platform\nclass AcmePlatform: pass\n",
    "acme_kvref-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-kvref\nVersion: 1\n",
    "acme_kvref-1.dist-info/entry_points.txt": "[vllm.platform_plugins]\nacme = acme:register\n",
}


@pytest.mark.parametrize(
    ("name", "register", "told"),
    [
        ("other", "return None", ["no platform plugin 'other'", "installed are: acme", "--path"]),
        ("acme", "return None", ["not for this machine", "--stub"]),
        ("acme", "raise RuntimeError('no driver')", ["RuntimeError: no driver", "acme:register"]),
        ("acme", "return 'acme.platform.AcmePlatform'", ["'acme_npu' is missing", "--stub acme_npu"]),
        ("acme", "import vllm.gone", ["'vllm.gone' that vLLM", "--path"]),
        ("acme", "return 'acme.early.AcmePlatform'", ["no platform yet", "in the functions that need it"]),
    ],
)
def test_a_plugin_that_cannot_be_loaded(tmp_path: Path, name: str, register: str, told: list[str]) -> None:
    """The message is one paragraph that names the plugin and what to do. The exit code is 2."""
    for file, text in {**VLLM, "acme/__init__.py": f"def register():\n    {register}\n"}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "kvref_conformance", "check", f"vllm:{name}", "--path", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 2, ran.stderr
    paragraph = ran.stderr[ran.stderr.index(f"kvref: target 'vllm:{name}' cannot be used") :].strip()
    assert "\n" not in paragraph
    for part in told:
        assert part in paragraph


@pytest.mark.parametrize("target", ["vllm", "vllm:acme"])
def test_where_there_is_no_vllm(target: str) -> None:
    """The message names the missing vLLM, not the plugin."""
    with pytest.raises(TargetFailed, match=f"there is no vLLM for {re.escape(sys.executable)}.*--python"):
        check(target, "spec.*")


@pytest.mark.parametrize(("flags", "refused"), [("fma avx2", True), ("avx2 avx512f avx512_bf16", False)])
def test_kernels_that_the_cpu_cannot_run_are_refused(
    flags: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "vllm._C", raising=False)
    monkeypatch.setattr(plugins, "machine", lambda: "x86_64")
    monkeypatch.setattr(plugins, "Path", lambda path: SimpleNamespace(read_text=lambda: f"flags : {flags}"))
    plugins.refuse_kernels()
    assert ("vllm._C" in sys.modules) is refused
    sys.modules.pop("vllm._C", None)
