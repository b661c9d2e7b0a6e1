from pathlib import Path

from kvref_conformance.laws import LAWS
from kvref_conformance.report.lawbook import laws_page

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_of_laws_is_up_to_date() -> None:
    assert (DOCS / "laws.md").read_text(encoding="utf-8") == laws_page(LAWS.values()), (
        "run: kvref laws --markdown > docs/laws.md"
    )
