"""The addresses of a node's settings, checked before it opens anything.

A node that finds its port taken only after it opened its data has done work for nothing, and has
kept the data from another node meanwhile.
"""

from __future__ import annotations

import errno
from dataclasses import replace

from streamlog.errors import Invalid, StreamlogError, Unavailable
from streamlog.server.addresses import is_loopback, probe, split_address
from streamlog.settings import Settings
from streamlog.settings.node import NodeConfig

PATHS = {"listen": "node.listen", "http_listen": "node.http_listen"}
ADVERTISED = ("advertised", "http_advertised")


def check_listeners(node: NodeConfig) -> bool:
    """Whether an address reaches beyond this machine, which `insecure` allows.

    Errors: Invalid (an address, both the same, or one that is not allowed).
    """
    _check_advertised(node)
    grpc_place, http_place = (_split(node, field) for field in PATHS)
    if grpc_place == http_place and grpc_place[1] != 0:
        raise Invalid(
            f"gRPC and HTTP cannot both listen on {node.listen}; choose another with --http-listen"
        )
    places = ((node.listen, grpc_place[0]), (node.http_listen, http_place[0]))
    open_places = [address for address, host in places if not is_loopback(host)]
    if open_places and not node.insecure:
        raise Invalid(
            f"listening on {' and '.join(open_places)} reaches beyond this machine, and the "
            "node has no TLS; listen on 127.0.0.1, or say --insecure if the network is trusted"
        )
    return bool(open_places)


def with_usable_listeners(settings: Settings, mode: str) -> tuple[Settings, str]:
    """Settings whose addresses can be listened on now, and a note of what was changed, for people.

    A `dev` node without an address in its settings takes free ports where the default ones are in
    use.
    Errors: Invalid, Unavailable.
    """
    node = settings.node
    check_listeners(node)
    in_use: list[str] = []
    chosen = {field: str(getattr(node, field)) for field in PATHS}
    for field, path in PATHS.items():
        address = chosen[field]
        try:
            probe(address, f"--{field.replace('_', '-')}")
        except StreamlogError as error:
            if mode != "dev" or path in settings.sources or not _is_taken(error):
                raise
            in_use.append(address)
            chosen[field] = f"{address.rpartition(':')[0]}:0"
    if not in_use:
        return settings, ""
    note = f"{' and '.join(in_use)} in use, perhaps by another node; free ports were taken"
    node = replace(node, listen=chosen["listen"], http_listen=chosen["http_listen"])
    return replace(settings, node=node), note


def _check_advertised(node: NodeConfig) -> None:
    """Errors: Invalid for an address that no client can connect to."""
    for field in ADVERTISED:
        address = getattr(node, field)
        if address is None:
            continue
        try:
            host, port = split_address(address)
        except Invalid as error:
            raise Invalid(f"node.{field}: {error.message}") from error
        if port == 0 or host in ("0.0.0.0", "::"):
            raise Invalid(
                f"node.{field}: clients cannot connect to {address}; give the host and the port "
                "that they reach the node at"
            )


def _split(node: NodeConfig, field: str) -> tuple[str, int]:
    try:
        return split_address(getattr(node, field))
    except Invalid as error:
        raise Invalid(f"{PATHS[field]}: {error.message}") from error


def _is_taken(error: StreamlogError) -> bool:
    cause = error.__cause__
    is_taken = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
    return isinstance(error, Unavailable) and is_taken
