from pathlib import Path

import differences

from kvref_conformance.laws import LAWS
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
