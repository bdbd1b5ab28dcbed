"""The addresses of Kafka's protocol, as the settings name them: [NAME=]HOST:PORT, with commas.

Several of them serve clients in several networks: each client is told the addresses that belong to
the one that it connected to, as in Kafka.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamlog.errors import Invalid
from streamlog.server.addresses import split_address
from streamlog.settings.node import NONE, NodeConfig

DEFAULT_NAME = "kafka"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_TAKEN = ("grpc", "http")
_ANY = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """`advertised` None: clients are told the address that the node listens on."""

    name: str
    listen: str
    advertised: str | None


def kafka_addresses(node: NodeConfig) -> tuple[KafkaAddress, ...]:
    """The listeners of `kafka_listen` with what `kafka_advertised` says of them.

    With `none` nothing is advertised, whatever a file says beside it. Errors: Invalid.
    """
    if node.kafka_listen is None and node.kafka_advertised is not None:
        raise Invalid(
            f"node.kafka_advertised: clients would be told {node.kafka_advertised[:80]}, where "
            "nothing listens; say with --kafka-listen HOST:PORT where this node does"
        )
    listen = _named(node.kafka_listen, "node.kafka_listen")
    advertised = _named(node.kafka_advertised, "node.kafka_advertised")
    if len(listen) == 1 and DEFAULT_NAME in advertised and len(advertised) == 1:
        # One address needs no name on either side.
        advertised = {next(iter(listen)): advertised[DEFAULT_NAME]}
    unknown = [name for name in advertised if name not in listen]
    if unknown and listen:
        raise Invalid(
            f"node.kafka_advertised: no listener of node.kafka_listen is called {unknown[0]!r}; "
            f"there is {' and '.join(listen)}"
        )
    addresses = tuple(
        KafkaAddress(name, address, advertised.get(name)) for name, address in listen.items()
    )
    for address in addresses:
        _check_reachable(address)
    return addresses


def _named(text: str | None, path: str) -> dict[str, str]:
    """Name → HOST:PORT. Errors: Invalid."""
    if text is None or text.strip().lower() == NONE:
        return {}
    by_name: dict[str, str] = {}
    for item in text.split(","):
        before, equals, after = item.strip().rpartition("=")
        name, address = (before, after) if equals else (DEFAULT_NAME, after)
        try:
            split_address(address)
        except Invalid as error:
            raise Invalid(
                f"{path}: {address[:80]!r} is no address; give HOST:PORT, such as 127.0.0.1:9092"
            ) from error
        if not _NAME.fullmatch(name) or name.lower() in _TAKEN:
            raise Invalid(
                f"{path}: {name[:80]!r} cannot be a listener's name; give one of letters, digits, "
                "_ and -, other than grpc and http, such as INTERNAL=10.0.0.1:9092"
            )
        if name.lower() in (other.lower() for other in by_name):
            raise Invalid(
                f"{path}: two listeners are called {name}; give each a name: "
                "INTERNAL=10.0.0.1:9092,EXTERNAL=192.0.2.1:9093"
            )
        by_name[name] = address
    return by_name


def _check_reachable(address: KafkaAddress) -> None:
    """Kafka's clients connect to what they are told, whatever they connected to first.

    Errors: Invalid for an address that no client can connect to.
    """
    host, port = split_address(address.advertised or address.listen)
    if address.advertised is None and host not in _ANY:
        return  # A port of 0 is told as the one that was chosen.
    if host in _ANY or port == 0:
        raise Invalid(
            f"Kafka's clients of listener {address.name} would be told to connect to "
            f"{address.advertised or address.listen}, which they cannot; give the host and port "
            "that they reach the node at with --kafka-advertise HOST:PORT"
        )
