"""A node that comes back finds its port, also when somebody had it meanwhile."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from streamlog.demo import node as demo_node
from streamlog.demo.node import NodeProcess
from streamlog.demo.ports import free_port, is_free, outgoing_from
from streamlog.errors import Unavailable


def test_a_port_is_none_that_an_outgoing_connection_gets() -> None:
    ports = {free_port() for _ in range(20)}
    assert max(ports) < outgoing_from()
    assert len(ports) > 1


@pytest.mark.slow
def test_a_node_waits_for_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(demo_node, "free_port", lambda: port)
    node = NodeProcess(tmp_path, wal="disk")
    taker = socket.socket()
    taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taker.bind(("127.0.0.1", port))
    taker.listen(1)

    def lets_go() -> None:
        while not node.log_path.exists() or "cannot listen" not in node.log_path.read_text():
            pause.wait(0.05)
        taker.close()

    pause = threading.Event()
    thread = threading.Thread(target=lets_go)
    thread.start()
    try:
        node.start()
        assert node.server == f"127.0.0.1:{port}"
        node.stop()
    finally:
        taker.close()
        node.discard()
        thread.join()


def test_a_port_that_stays_taken_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", 0))
        taker.listen(1)
        port = taker.getsockname()[1]
        assert not is_free(port)
        monkeypatch.setattr(demo_node, "free_port", lambda: port)
        monkeypatch.setattr(demo_node, "PORT_TIMEOUT_S", 0.0)
        with pytest.raises(Unavailable, match="in use"):
            NodeProcess(tmp_path, wal="disk").start()
