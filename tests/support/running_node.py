"""A whole node in the test's own event loop: real engine, real listeners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from streamlog.server.banner import Banner
from streamlog.server.node import Node
from streamlog.settings import load
from streamlog.v1.admin_pb2_grpc import AdminServiceStub
from streamlog.v1.kv_pb2_grpc import KVServiceStub
from streamlog.v1.log_pb2_grpc import LogServiceStub
from streamlog.v1.stream_pb2_grpc import StreamServiceStub
from tests.support.grpc_aio import close


@dataclass
class RunningNode:
    node: Node
    banner: Banner
    channel: grpc.aio.Channel

    @property
    def admin(self) -> Any:
        return AdminServiceStub(self.channel)

    @property
    def kv(self) -> Any:
        return KVServiceStub(self.channel)

    @property
    def log(self) -> Any:
        return LogServiceStub(self.channel)

    @property
    def streams(self) -> Any:
        return StreamServiceStub(self.channel)

    def metric(self, name: str, **labels: str) -> float:
        assert self.node.engine is not None
        return self.node.engine.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def running_node(mode: str = "dev", **overrides: Any) -> AsyncIterator[RunningNode]:
    """Keeps everything in memory unless `data` or `store` is set."""
    places = {} if {"data", "store"} & set(overrides) else {"store": "memory://"}
    if places:
        places["meta"] = "memory://"
    named = {name.replace("__", "."): value for name, value in overrides.items()}
    flags = {"listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0", **places, **named}
    node = Node(load(None, {}, flags), mode=mode)
    banner = await node.start()
    channel = grpc.aio.insecure_channel(
        banner.grpc,
        options=[
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ],
    )
    try:
        yield RunningNode(node, banner, channel)
    finally:
        await close(channel)
        await node.stop()
