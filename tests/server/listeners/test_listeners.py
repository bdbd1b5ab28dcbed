"""Addresses are checked before data is opened; a second `dev` node finds ports of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from streamlog.errors import DataInUse, Invalid, StreamlogError, Unavailable
from streamlog.server.banner import durability
from streamlog.server.listeners.grpc_listener import GrpcListener
from streamlog.server.listeners.listeners import Listeners
from streamlog.server.node import Node
from streamlog.settings import Settings, load
from streamlog.v1 import admin_pb2
from streamlog.v1.admin_pb2_grpc import AdminServiceStub


@contextmanager
def taken_port() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def settings(data: Path, **flags: Any) -> Settings:
    return load(None, {}, {"data": str(data), "http_listen": "127.0.0.1:0", **flags})


@pytest.mark.parametrize(
    ("flags", "error", "words"),
    [
        ({"listen": "9644"}, Invalid, "node.listen: '9644' is no address"),
        ({"listen": "127.0.0.1:²"}, Invalid, "node.listen: '127.0.0.1:²' is no address"),
        ({"listen": "127.0.0.1:" + "9" * 5000}, Invalid, "is no address"),
        ({"http_listen": "a:b"}, Invalid, "node.http_listen: 'a:b' is no address"),
        ({"listen": "127.0.0.1:7777", "http_listen": "127.0.0.1:7777"}, Invalid, "both listen on"),
        ({"listen": "0.0.0.0:0"}, Invalid, "--insecure"),
        ({"listen": "192.0.2.1:0", "insecure": True}, Unavailable, "choose another with --listen"),
    ],
)
def test_a_wrong_address_is_refused_before_anything_is_made(
    tmp_path: Path, flags: dict[str, Any], error: type[StreamlogError], words: str
) -> None:
    with pytest.raises(error) as raised:
        asyncio.run(Node(settings(tmp_path / "data", **flags), mode="dev").start())
    assert words in raised.value.message
    assert not (tmp_path / "data").exists()


def test_a_given_port_in_use_is_refused_and_a_default_one_is_replaced(
    tmp_path: Path,
) -> None:
    asyncio.run(_ports_in_use(tmp_path))


async def _ports_in_use(tmp_path: Path) -> None:
    with taken_port() as address:
        for mode in ("dev", "serve"):
            with pytest.raises(Unavailable, match="is in use"):
                await Node(settings(tmp_path / mode, listen=address), mode=mode).start()
        default = settings(tmp_path / "data", kafka_listen="none")
        # As if this were the default: no source names it.
        default = replace(default, node=replace(default.node, listen=address))
        node = Node(default, mode="dev")
        banner = await node.start()
        try:
            assert banner.grpc != address
            assert banner.note.startswith(f"{address} in use")
            assert banner.note in banner.as_text()
            assert "flush.ms, which a power cut costs" in banner.as_text()
        finally:
            await node.stop()
        with pytest.raises(Unavailable, match="is in use"):
            await Node(default, mode="serve").start()


def test_a_second_node_on_the_same_data_is_told_where_the_first_serves(tmp_path: Path) -> None:
    asyncio.run(_two_on_one_folder(tmp_path))


async def _two_on_one_folder(tmp_path: Path) -> None:
    first = Node(settings(tmp_path / "data", listen="127.0.0.1:0"), mode="dev")
    banner = await first.start()
    try:
        second = Node(settings(tmp_path / "data", listen="127.0.0.1:0"), mode="dev")
        with pytest.raises(DataInUse) as raised:
            await second.start()
    finally:
        await first.stop()
    assert f"use it with --server {banner.grpc}" in raised.value.message
    assert str(banner.pid) in raised.value.message


def test_a_listener_that_fails_at_its_stop_leaves_no_data_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = GrpcListener.stop

    async def stop_and_fail(listener: GrpcListener, grace_s: float) -> None:
        await stop(listener, grace_s)
        raise RuntimeError("a bug")

    async def main() -> None:
        first = Node(settings(tmp_path / "data", listen="127.0.0.1:0"), mode="dev")
        await first.start()
        with monkeypatch.context() as patch:
            patch.setattr(GrpcListener, "stop", stop_and_fail)
            await first.stop()
        second = Node(settings(tmp_path / "data", listen="127.0.0.1:0"), mode="dev")
        await second.start()
        await second.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("wal", "store", "meta", "promise", "loss"),
    [
        ("object", "s3://b/p", "rocksdb:///d/meta", "after the upload", "recover` rebuilds it"),
        ("disk", "s3://b/p", "rocksdb:///d/meta", "after a sync", "not uploaded yet"),
        ("disk", "local:///d/objects", "rocksdb:///d/meta", "after a sync", "loses all"),
        ("object", "local:///d/objects", "rocksdb:///d/meta", "after the upload", "loses all"),
        ("object", "memory://", "memory://", "after the upload", "ends with this process"),
    ],
)
def test_the_banner_promises_what_store_and_metadata_allow(
    wal: str, store: str, meta: str, promise: str, loss: str
) -> None:
    text = durability(wal, store, meta)
    assert promise in text
    assert loss in text
    assert "loses nothing" not in text


@pytest.mark.parametrize("address", ["log.example", "log.example:0", "0.0.0.0:9644"])
def test_an_advertised_address_that_no_client_can_reach_is_refused(
    tmp_path: Path, address: str
) -> None:
    node = Node(settings(tmp_path / "data", listen="127.0.0.1:0", advertised=address))
    with pytest.raises(Invalid, match=r"node\.advertised"):
        asyncio.run(node.start())
    assert not (tmp_path / "data").exists()


def test_a_node_shows_its_advertised_addresses(tmp_path: Path) -> None:
    asyncio.run(_advertised(tmp_path))


async def _advertised(tmp_path: Path) -> None:
    flags = {"listen": "127.0.0.1:0", "advertised": "log.example:9644"}
    node = Node(settings(tmp_path / "data", **flags), mode="dev")
    banner = await node.start()
    try:
        async with grpc.aio.insecure_channel(banner.grpc) as channel:
            status = await AdminServiceStub(channel).GetStatus(admin_pb2.GetStatusRequest())
    finally:
        await node.stop()
    listeners = {listener.name: listener for listener in status.listeners}
    assert listeners["grpc"].address == banner.grpc
    assert listeners["grpc"].advertised == "log.example:9644"
    assert listeners["http"].address == listeners["http"].advertised == banner.http
    assert "grpc is advertised as log.example:9644" in banner.as_text()


def test_the_http_port_has_an_advertised_address_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        flags = {"listen": "127.0.0.1:0", "http_advertised": "pages.example:9645"}
        node = Node(settings(tmp_path / "data", **flags), mode="dev")
        banner = await node.start()
        await node.stop()
        advertised = {listener.name: listener.advertised for listener in banner.listeners}
        assert advertised["http"] == "pages.example:9645"
        assert advertised["grpc"] == banner.grpc

    asyncio.run(main())


def test_the_addresses_are_known_before_the_engine_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a node can register with them."""
    bound: list[tuple[str, ...]] = []

    async def open_and_listen(node: Node, listeners: Listeners, _: object) -> object:
        bound.append(tuple(endpoint.address for endpoint in listeners.endpoints))
        raise Unavailable("the test ends here")

    monkeypatch.setattr(Node, "_open_and_listen", open_and_listen)
    node = Node(settings(tmp_path / "data", listen="127.0.0.1:0"), mode="dev")
    with pytest.raises(Unavailable, match="the test ends here"):
        asyncio.run(node.start())
    assert len(bound) == 1
    for address in bound[0]:
        host, _, port = address.rpartition(":")
        assert int(port) > 0
        with socket.socket() as free:  # The failed start gave it back.
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind((host, int(port)))
            free.listen()
