"""Ports for servers that are killed and started again at the same address.

They lie below those that the system gives to outgoing connections: there a client that tries to
reach a server that is away may be given the server's own port, connect to itself, and keep the
server from coming back.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from streamlog.errors import Unavailable

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_START = 32768
_LOWEST = 10_000
_TRIES_MAX = 200


def outgoing_from() -> int:
    """The first port that an outgoing connection may be given."""
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_START


def free_port() -> int:
    """A port of 127.0.0.1 without a listener. Errors: Unavailable."""
    end = outgoing_from()
    if end <= _LOWEST:
        return _any_free_port()
    for _ in range(_TRIES_MAX):
        port = _LOWEST + secrets.randbelow(end - _LOWEST)
        if is_free(port):
            return port
    raise Unavailable(f"no free port of 127.0.0.1 was found from {_LOWEST} to {end - 1}")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _any_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
