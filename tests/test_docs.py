import re
import tomllib
from pathlib import Path

import differences

from kvref_conformance import hosts
from kvref_conformance.laws import LAWS
from kvref_conformance.profile import load
from kvref_conformance.report.lawbook import laws_page

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_of_laws_is_up_to_date() -> None:
    assert (DOCS / "laws.md").read_text(encoding="utf-8") == laws_page(LAWS.values()), (
        "run: kvref laws --markdown > docs/laws.md"
    )


def test_each_area_has_one_heading() -> None:
    headings = [line[3:] for line in laws_page(LAWS.values()).splitlines() if line.startswith("## ")]
    assert headings == list(dict.fromkeys(law.area for law in LAWS.values()))


def test_the_page_of_differences_is_up_to_date() -> None:
    told = (DOCS / "differences.md").read_text(encoding="utf-8")
    assert told == differences.page(differences.load()), (
        "run: python tests/differences.py > docs/differences.md"
    )


def test_each_difference_has_a_name_of_its_own_and_laws_that_exist() -> None:
    listed = differences.load()["difference"]
    assert len({each["id"] for each in listed}) == len(listed)
    assert {law for each in listed for law in each.get("laws", ())} <= {*LAWS}


TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")


def test_the_tutorial_ends_with_the_profile_of_its_plugin() -> None:
    """What it says beyond that is what is run in tests/vllm."""
    blocks = re.findall(r"^```toml\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL)
    told = tomllib.loads("".join(blocks))
    assert (told.pop("path"), [entry["law"] for entry in told.pop("known")]) == (
        ["site"],
        ["spec.merge-identity"],
    )
    shipped = load(DOCS / "example-plugin" / "kvref.toml")
    assert {"target": shipped.target, "strategies": shipped.strategies} == told


def test_the_tutorial_speaks_of_what_there_is() -> None:
    assert re.findall(r"kvref hosts prepare (\S+)", TUTORIAL) == [hosts.BASE]
    plugin = (DOCS / "example-plugin" / "vllm_bankdev" / "kv_cache.py").read_text(encoding="utf-8")
    (line,) = re.findall(r"^```python\n(.*?)\n```", TUTORIAL, re.MULTILINE | re.DOTALL)
    assert line in plugin
    linked = re.findall(r"\]\(([\w./-]+)[^)]*\)", TUTORIAL)
    assert linked
    assert [name for name in linked if not (DOCS / name).exists()] == []
