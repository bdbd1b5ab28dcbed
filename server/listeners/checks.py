"""The addresses of a node's settings, checked before it opens anything.

A node that finds its port taken only after it opened its data has done work for nothing, and has
kept the data from another node meanwhile.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any, NamedTuple

from streamlog.errors import Invalid, StreamlogError, Unavailable
from streamlog.server.addresses import is_loopback, probe, split_address
from streamlog.server.listeners.kafka_addresses import DEFAULT_NAME, kafka_addresses
from streamlog.settings import Settings
from streamlog.settings.node import NodeConfig

ADVERTISED = ("advertised", "http_advertised")


class _Place(NamedTuple):
    """An address of the settings, and the flag that sets it."""

    path: str
    option: str
    protocol: str
    address: str

    def split(self) -> tuple[str, int]:
        """Errors: Invalid, which names the setting."""
        try:
            return split_address(self.address)
        except Invalid as error:
            raise Invalid(f"{self.path}: {error.message}") from error


def _places(node: NodeConfig) -> list[_Place]:
    """Every address that the node is to listen on. Errors: Invalid."""
    return [
        _Place("node.listen", "--listen", "gRPC", node.listen),
        _Place("node.http_listen", "--http-listen", "HTTP", node.http_listen),
        *(
            _Place("node.kafka_listen", "--kafka-listen", _purpose(address.name), address.listen)
            for address in kafka_addresses(node)
        ),
    ]


def _purpose(name: str) -> str:
    return "Kafka's protocol" if name == DEFAULT_NAME else f"Kafka's protocol ({name})"


def check_listeners(settings: Settings) -> bool:
    """Whether an address reaches beyond this machine for everyone, which `insecure` allows.

    It does not where clients need a certificate.

    Errors: Invalid (an address, two the same, or one that is not allowed).
    """
    node = settings.node
    _check_advertised(node)
    taken: dict[tuple[str, int], _Place] = {}
    open_places: list[str] = []
    for place in _places(node):
        host, port = place.split()
        other = taken.setdefault((host, port), place)
        if other is not place and port != 0:
            raise Invalid(
                f"{other.protocol} and {place.protocol} cannot both listen on {place.address}; "
                f"choose another with {place.option}"
            )
        if not is_loopback(host) and not _asks_everyone(settings, place):
            open_places.append(place.address)
    if open_places and not node.insecure:
        raise Invalid(
            f"listening on {' and '.join(open_places)} reaches beyond this machine, and clients "
            "need no certificate there; give --tls-cert, --tls-key and --tls-client-ca, listen on "
            "127.0.0.1, or say --insecure if the network is trusted"
        )
    return bool(open_places)


def _asks_everyone(settings: Settings, place: _Place) -> bool:
    """Whether each client needs a certificate there."""
    is_tls = settings.tls.http or place.path != "node.http_listen"
    return is_tls and settings.tls.requires_certificates


def with_usable_listeners(settings: Settings, mode: str) -> tuple[Settings, str]:
    """Settings whose addresses can be listened on now, and a note of what was changed, for people.

    A `dev` node without an address in its settings takes free ports where the default ones are in
    use.
    Errors: Invalid, Unavailable.
    """
    node = settings.node
    check_listeners(settings)
    in_use: list[str] = []
    chosen: dict[str, Any] = {}
    for place in _places(node):
        try:
            probe(place.address, place.option)
        except StreamlogError as error:
            if mode != "dev" or place.path in settings.sources or not _is_taken(error):
                raise
            in_use.append(place.address)
            # Of several Kafka listeners none has a default, so that this one is alone.
            field = place.path.removeprefix("node.")
            chosen[field] = f"{place.address.rpartition(':')[0]}:0"
    if not in_use:
        return settings, ""
    note = f"{' and '.join(in_use)} in use, perhaps by another node; free ports were taken"
    return replace(settings, node=replace(node, **chosen)), note


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


def _is_taken(error: StreamlogError) -> bool:
    cause = error.__cause__
    is_taken = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
    return isinstance(error, Unavailable) and is_taken
