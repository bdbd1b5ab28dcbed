"""How many connections the gRPC port has: a bound that gRPC itself enforces, and a count from it.

gRPC closes a connection above `grpc.max_allowed_incoming_connections` as soon as it is accepted.
The count comes from channelz, gRPC's own register of sockets; what `grpcio-channelz` serves to
others is read here directly, because its conversion to messages would hold up the event loop.
"""

from __future__ import annotations

import json
from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined,unused-ignore]

_PAGE = 1000


def last_server_id() -> int:
    """The highest number that gRPC has given to a server of this process; 0: none yet."""
    found = 0
    while True:
        page: dict[str, Any] = json.loads(cygrpc.channelz_get_servers(found + 1 if found else 0))
        ids = [int(server["ref"]["serverId"]) for server in page.get("server", ())]
        if ids:
            found = max(ids)
        if page.get("end") or not ids:
            return found


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
