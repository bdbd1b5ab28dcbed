"""The transport under an asyncio stream, which its type says less of than it can do."""

from __future__ import annotations

import asyncio


def socket_of(writer: asyncio.StreamWriter) -> asyncio.Transport:
    """Its reading can be paused."""
    transport = writer.transport
    assert isinstance(transport, asyncio.Transport)
    return transport
