"""Which memory moves into huge pages: private memory without a file, in whole pages. Its content stays."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvref_conformance.processes.huge_pages import allocated, use_huge_pages

HEAP = "rw-p 00000000 00:00 0 [heap]"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"00400000-00a00000 {HEAP}", [(0x400000, 0x600000)]),
        (f"00500000-00b00000 {HEAP}", [(0x600000, 0x400000)]),
        (f"00500000-00600000 {HEAP}", []),
        ("7f0000000000-7f0000400000 rw-p 00000000 00:00 0", [(0x7F0000000000, 0x400000)]),
        ("7f0000000000-7f0000400000 r--p 00000000 00:00 0", []),
        ("7f0000000000-7f0000400000 rw-s 00000000 00:01 9 /dev/shm/shared", []),
        ("7f0000000000-7f0000400000 rw-p 00000000 08:01 9 /usr/lib/a b.so", []),
        ("7ffc00000000-7ffc00400000 rw-p 00000000 00:00 0 [stack]", []),
    ],
)
def test_what_is_allocated(line: str, found: list[tuple[int, int]]) -> None:
    assert list(allocated(line)) == found


KEEPS = """
import os
from kvref_conformance.processes.huge_pages import SIZE, use_huge_pages
kept = [bytes([number]) * SIZE for number in range(8)]
use_huge_pages()
child = os.fork()
assert kept == [bytes([number]) * SIZE for number in range(8)]
assert child == 0 or os.waitpid(child, 0)[1] == 0
"""


def test_memory_stays_as_it_is() -> None:
    """Checked in a process of its own and in a child that it forks."""
    assert subprocess.run([sys.executable, "-c", KEEPS], check=False).returncode == 0


def test_without_proc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path) -> str:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "read_text", unreadable)
    use_huge_pages()
