"""Addresses as users type them, checked before anything is opened."""

from __future__ import annotations

import click

GRPC_PORT = 9644
PORT_MAX = 65_535
SCHEMES = ("http://", "https://", "grpc://")


def server_address(text: str) -> str:
    """HOST:PORT of what a user wrote for a node; a missing port is the default one.

    A scheme is dropped: the protocol is always gRPC. (`https://` turns TLS on, in state.py.)
    Errors: ValueError, which says what to write.
    """
    rest = text.strip()
    for scheme in SCHEMES:
        if rest.lower().startswith(scheme):
            rest = rest[len(scheme) :].removesuffix("/")
    if "://" in rest:
        scheme = rest.partition("://")[0]
        raise ValueError(
            f"{text!r}: {scheme} is unknown; write HOST:PORT, such as 127.0.0.1:{GRPC_PORT}"
        )
    host, port = _parts(rest)
    if not _is_host(host):
        raise ValueError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:{GRPC_PORT}")
    number = _port(text, port) if port else GRPC_PORT
    if number == 0:
        raise ValueError(f"{text!r}: a node listens on a port from 1 to {PORT_MAX}")
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


def listen_address(text: str) -> str:
    """HOST:PORT to listen on; port 0 takes a free one. Errors: ValueError."""
    host, port = _parts(text.strip())
    if not port or not _is_host(host):
        raise ValueError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:{GRPC_PORT}")
    return f"[{host}]:{_port(text, port)}" if ":" in host else f"{host}:{_port(text, port)}"


def _is_host(host: str) -> bool:
    """A name that can be looked up, or an address."""
    try:
        return bool(host.encode("idna")) and not set(host) & set("/@?# ,")
    except UnicodeError:
        return False


def _parts(text: str) -> tuple[str, str]:
    """Host and port; an IPv6 address stands in brackets, or has no port."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        return (host, rest.removeprefix(":")) if bracket and rest[:1] in ("", ":") else ("", "")
    if text.count(":") > 1:
        return text, ""
    host, _, port = text.partition(":")
    return host, port


def _port(text: str, port: str) -> int:
    if not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise ValueError(f"{text!r}: {port!r} is not a port from 0 to {PORT_MAX}")
    return int(port)


def server_option(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        return server_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx=ctx, param=param) from None


def listen_option(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return listen_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx=ctx, param=param) from None
