"""State that several threads share. Either all changes of a transaction are published, or none.

The state is an immutable value. A *change* is a function from the present value to the next one. To refuse,
it raises an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar, final

__all__ = ["SharedState"]

StateT = TypeVar("StateT")


class _Transaction(Generic[StateT]):
    """What one thread has changed and not yet published."""

    def __init__(self, state: StateT) -> None:
        self.thread = threading.get_ident()
        self.state = state
        self.changes: list[Callable[[StateT], StateT]] = []


@final
class SharedState(Generic[StateT]):
    """An immutable value that every thread may read and replace.

    A change is published at once. In a transaction only the transaction's own thread sees it, until the
    transaction ends.
    """

    def __init__(self, state: StateT) -> None:
        self._published = state
        self._publishing = threading.Lock()  # held for the moment of one change
        self._turn = threading.Lock()  # held by the thread in a transaction, while foreign code runs
        self._transaction: _Transaction[StateT] | None = None

    @property
    def state(self) -> StateT:
        """The value as this thread sees it."""
        transaction = self._own_transaction()
        return self._published if transaction is None else transaction.state

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is in a transaction."""
        return self._own_transaction() is not None

    def change(self, change: Callable[[StateT], StateT]) -> None:
        """Replace the value. If `change` raises an exception, the value stays as it was.

        Args:
            change: returns the next value and does nothing else. In a transaction it is called twice.
        """
        transaction = self._own_transaction()
        if transaction is None:
            with self._publishing:
                self._published = change(self._published)
        else:
            transaction.state = change(transaction.state)
            transaction.changes.append(change)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Publish all changes of the block at once at its end, or none if an exception ends it.

        Other threads go on reading and changing the published value. A thread that wants a transaction of its
        own waits.

        Raises:
            RuntimeError: this thread is in a transaction already.
        """
        if self.in_transaction:
            raise RuntimeError("a transaction cannot begin inside another one of the same thread")
        with self._turn:
            transaction = self._transaction = _Transaction(self._published)
            try:
                yield
                with self._publishing:
                    # Other threads may have published changes since: ours are made again, on top of those.
                    state = self._published
                    for change in transaction.changes:
                        state = change(state)
                    self._published = state
            finally:
                self._transaction = None

    def _own_transaction(self) -> _Transaction[StateT] | None:
        transaction = self._transaction
        return transaction if transaction and transaction.thread == threading.get_ident() else None
