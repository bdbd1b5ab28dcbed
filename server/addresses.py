"""Addresses that a node listens on: parsed, and tried out before anything else is opened."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from streamlog.errors import Invalid, Unavailable


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where clients reach a node over one protocol; both addresses are HOST:PORT.

    `address` is the one that the node listens on, `advertised` the one that clients are told.
    """

    name: str
    protocol: str
    address: str
    advertised: str


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT or [IPV6]:PORT. Errors: Invalid."""
    host, _, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or not is_number or int(port) > 65535:
        raise Invalid(f"{address[:80]!r} is no address; give HOST:PORT, such as 127.0.0.1:9644")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def joined(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def probe(address: str, option: str = "--listen") -> None:
    """Listens on the address for a moment. Errors: Invalid, Unavailable, which name the reason.

    gRPC prints why it cannot listen and raises an error without the reason; a socket's error has
    it.
    """
    host, port = split_address(address)
    try:
        family, kind, proto, _, socket_address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(socket_address)
            # With SO_REUSEADDR two sockets may bind one port; only one of them may listen.
            listener.listen(1)
    except OSError as error:
        raise cannot_listen(address, error.strerror or str(error), option) from error


_PURPOSES = {"--http-listen": "HTTP", "--kafka-listen": "Kafka's protocol"}


def cannot_listen(address: str, reason: str, option: str) -> Unavailable:
    """The error of an address that cannot be listened on; `option` is the flag that sets it."""
    purpose = _PURPOSES.get(option, "gRPC")
    return Unavailable(
        f"cannot listen on {address} for {purpose} ({reason}): the port is in use, or the address "
        f"is not this machine's; choose another with {option}",
        address=address,
    )
