"""Makes docs/differences.md, where the reference differs from vLLM, from docs/differences.toml.

python tests/differences.py > docs/differences.md
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"

_HEAD = """# Where the reference differs from vLLM

Made from `differences.toml` by `python tests/differences.py > docs/differences.md`: change the file, not this
page.

The reference uses vLLM's names and does what vLLM 0.32.0 does, except for the differences below. Each is on
purpose. `tests/vllm/test_differential.py` checks that there are no others. It has both perform the same
operations, and must recognise every deviation as one of these. It must see each difference marked with *.
Laws and our own tests cover the others.

| where | vLLM 0.32.0 | the reference | why |
|---|---|---|---|
"""


def load() -> dict[str, Any]:
    return tomllib.loads((DOCS / "differences.toml").read_text(encoding="utf-8"))


def page(document: dict[str, Any]) -> str:
    rows = [
        f"| {each['where']}{'*' if 'seen' in each else ''} | {each['vllm']} | {each['reference']} "
        f"| {_why(each)} |\n"
        for each in document["difference"]
    ]
    return f"{_HEAD}{''.join(rows)}\nThe reference does not have: {document['not_there'].strip()}.\n"


def _why(difference: dict[str, Any]) -> str:
    laws = ", ".join(f"`{law}`" for law in difference.get("laws", ()))
    return f"{difference['why']} ({laws})" if laws else str(difference["why"])


if __name__ == "__main__":
    print(page(load()), end="")
