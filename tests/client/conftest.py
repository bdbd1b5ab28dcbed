from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.client.fake_node import FakeNode

WAIT_S = 20


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as running:
        yield running


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a socket that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(listening.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT_S)
        for client in held:
            client.close()
