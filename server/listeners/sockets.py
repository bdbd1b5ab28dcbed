"""Sockets to listen on, for listeners over asyncio's transports."""

from __future__ import annotations

import asyncio
import socket

from streamlog.server.addresses import cannot_listen, split_address


async def listening_sockets(address: str, option: str, backlog: int) -> list[socket.socket]:
    """Sockets on all addresses of the host, with one port: `localhost` is reached over IPv6, too.

    `option`: the flag that sets the address. Errors: Unavailable.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        resolved = await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, place in dict.fromkeys(resolved):
            try:
                sockets.append(_bound(family, str(place[0]), port, backlog))
                port = sockets[0].getsockname()[1]
            except OSError:
                # A machine without IPv6 may still know an IPv6 address of localhost.
                if family != socket.AF_INET6 or len(resolved) == 1:
                    raise
        if not sockets:
            raise OSError(f"no address of {host} is this machine's")
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise cannot_listen(address, error.strerror or str(error), option) from error
    return sockets


def _bound(family: int, host: str, port: int, backlog: int) -> socket.socket:
    # With its protocol named: asyncio sends small answers at once (TCP_NODELAY) only where it is.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        # With SO_REUSEADDR two sockets may bind one port; only one of them may listen.
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening
