"""Options for `pytest --pyargs kvref_conformance`.

pytest imports this module in every run of every project that has kvref installed, so keep it small.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `kvref check` as `--kv-...`: the target, the laws, the depth, the seed and so on."""
    group = parser.getgroup("kvref", "conformance of KV-cache implementations")
    group.addoption("--kv-target", default=None, help="target to check, as for `kvref check`")
    group.addoption("--kv-profile", default=None, help="file of what the vendor declares, or none")
    group.addoption("--kv-python", default=None, help="interpreter that loads the target")
    group.addoption("--kv-path", action="append", default=[], help="folder to import from first")
    group.addoption("--kv-stub", action="append", default=[], help="package that is not here, to be mocked")
    group.addoption("--kv-laws", action="append", default=[], help="only laws that match this glob")
    group.addoption("--kv-depth", default=None, help="quick, standard or deep")
    group.addoption("--kv-seed", type=int, default=0, help="same seed, same examples")
    group.addoption("--kv-device", default="cpu", help="where tensors live: cpu or cuda")
    group.addoption("--kv-baseline", default=None, help="file of known deviations, or none")
    group.addoption("--kv-strict", action="store_true", help="broken robustness laws fail, too")
