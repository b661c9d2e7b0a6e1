from __future__ import annotations

import pytest

from kvref.shared_state import SharedState


def test_a_transaction_inside_another_is_refused() -> None:
    shared = SharedState(1)
    with shared.transaction():
        shared.change(lambda state: state + 1)
        with pytest.raises(RuntimeError, match="inside another"), shared.transaction():
            pass
        assert shared.in_transaction
    assert shared.state == 2
