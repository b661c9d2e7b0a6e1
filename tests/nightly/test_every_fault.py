import pytest
from faulty import breaks_exactly_its_law

from kvref_conformance.targets.faults import FAULTS


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_breaks_exactly_its_law(fault: str) -> None:
    breaks_exactly_its_law(fault)
