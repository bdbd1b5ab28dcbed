"""The number of connections to the gRPC port.

gRPC bounds them itself: it closes a connection above `grpc.max_allowed_incoming_connections` as
soon as it is accepted. The count comes from channelz, gRPC's own register of sockets, which is read
here directly: the conversion to messages by `grpcio-channelz` would hold up the event loop.
"""

from __future__ import annotations

import json
from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined,unused-ignore]

_PAGE = 1000


def last_server_id() -> int:
    """The highest id that gRPC has given to a server of this process; 0: none yet."""
    highest = 0
    while True:
        page: dict[str, Any] = json.loads(
            cygrpc.channelz_get_servers(highest + 1 if highest else 0)
        )
        ids = [int(server["ref"]["serverId"]) for server in page.get("server", ())]
        if ids:
            highest = max(ids)
        if page.get("end") or not ids:
            return highest


def count_connections(server_id: int) -> int:
    """Connections open at this moment."""
    count = start = 0
    while True:
        page: dict[str, Any] = json.loads(
            cygrpc.channelz_get_server_sockets(server_id, start, _PAGE)
        )
        sockets = page.get("socketRef", ())
        count += len(sockets)
        if page.get("end") or not sockets:
            return count
        start = max(int(socket["socketId"]) for socket in sockets) + 1
