"""Send messages between processes over a Unix socket. Each message is one JSON document."""

from __future__ import annotations

import json
import os
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class Channel:
    """One end of a connection. `send` and `receive` raise `EOFError` if the other end is closed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    def from_socket(cls, end: socket.socket) -> Channel:
        return cls(Connection(end.detach()))

    @classmethod
    def connect(cls, address: Path) -> Channel:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.connect(os.fspath(address))
        except OSError as error:
            end.close()
            raise EOFError(f"no process listens at {address.name}: {error}") from error
        return cls.from_socket(end)

    def send(self, message: Message) -> None:
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise EOFError("the peer is gone") from error

    def receive(self) -> Message:
        try:
            message: Message = json.loads(self._connection.recv_bytes())
        except OSError as error:
            raise EOFError("the peer is gone") from error
        return message

    def ready(self, timeout: float) -> bool:
        """Wait for a message or the end of the stream. False if neither comes within `timeout` seconds."""
        return self._connection.poll(timeout)

    @property
    def connection(self) -> Connection:
        """The underlying connection, as an argument for `multiprocessing.connection.wait`."""
        return self._connection

    def close(self) -> None:
        self._connection.close()
