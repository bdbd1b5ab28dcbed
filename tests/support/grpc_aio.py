"""What grpc.aio takes and has, and its stubs do not know."""

from __future__ import annotations

from typing import Any

import grpc.aio

_untyped: Any = grpc.aio
END_OF_CALL: object = _untyped.EOF


async def close(channel: grpc.aio.Channel) -> None:
    """At once: calls under way are cancelled."""
    untyped: Any = channel
    await untyped.close()


def raw_method(channel: Any, kind: str, path: str) -> Any:
    """A method of bytes; `kind`: unary_unary, stream_stream, …"""
    return getattr(channel, kind)(path)
