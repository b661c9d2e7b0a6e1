"""Put a fault into the reference."""

from __future__ import annotations

from unittest import mock


def break_it(owner: object, name: str, replacement: object) -> None:
    """Replace an attribute of the reference for as long as the process lives."""
    mock.patch.object(owner, name, replacement).start()
