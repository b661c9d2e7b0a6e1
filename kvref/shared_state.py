"""State that several threads share. A transaction publishes all its changes together, or none of them.

The state is an immutable value. A *change* is a function that takes the present value and returns the next
one. A change that is not possible raises an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar, final

__all__ = ["SharedState"]

StateT = TypeVar("StateT")


class _Transaction(Generic[StateT]):
    """The changes that one thread has made and not yet published."""

    def __init__(self, state: StateT) -> None:
        self.thread = threading.get_ident()
        self.state = state
        self.changes: list[Callable[[StateT], StateT]] = []


@final
class SharedState(Generic[StateT]):
    """An immutable value that every thread may read and replace.

    A change outside a transaction is published at once: all threads see it. A change in a transaction is
    visible only to the transaction's own thread until the transaction ends.
    """

    def __init__(self, state: StateT) -> None:
        self._published = state
        self._publishing = threading.Lock()  # held while a change is published
        self._turn = threading.Lock()  # held during a transaction, while foreign code runs
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
            change: returns the next value and has no other effect. In a transaction it is called twice.
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
        """Context manager: at exit, publish all changes made inside, or none if an exception occurred.

        Meanwhile other threads can read and change the published value. If another thread begins a
        transaction, it waits until this one ends.

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
                    # Other threads may have published changes meanwhile. Make ours again, on top of those.
                    state = self._published
                    for change in transaction.changes:
                        state = change(state)
                    self._published = state
            finally:
                self._transaction = None

    def _own_transaction(self) -> _Transaction[StateT] | None:
        transaction = self._transaction
        return transaction if transaction and transaction.thread == threading.get_ident() else None
