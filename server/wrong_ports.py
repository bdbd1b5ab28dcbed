"""Clients that came to the wrong port: what they speak, and where the node speaks that.

The first bytes of a connection tell. A listener passes them on; people read the answer in the log.
gRPC's own port is not looked at: its library reads from the socket itself, and closes connections
of other protocols without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from streamlog.server.addresses import Endpoint

FIRST_BYTES_MAX = 16
"""As many are enough to know a protocol."""

_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")
_HTTP2_PREFACE = b"PRI "
_TLS_HANDSHAKE = b"\x16\x03"
_KAFKA_SIZE_BYTE_MAX = 0x07
"""First byte of a Kafka request's size, up to 128 MiB; no other protocol here begins with it."""


class Spoken(Enum):
    """What a client speaks. Values: for people."""

    GRPC = "gRPC"
    HTTP = "HTTP"
    KAFKA = "Kafka's protocol"
    TLS = "TLS"


def spoken(first_bytes: bytes) -> Spoken | None:
    """None: nothing that is known here."""
    if first_bytes.startswith(_TLS_HANDSHAKE):
        return Spoken.TLS
    if first_bytes.startswith(_HTTP2_PREFACE):
        return Spoken.GRPC
    if first_bytes.startswith(_HTTP):
        return Spoken.HTTP
    if first_bytes and first_bytes[0] <= _KAFKA_SIZE_BYTE_MAX:
        return Spoken.KAFKA
    return None


class NodePorts:
    """Where a node speaks what. `endpoints` are known once its listeners are bound."""

    def __init__(self, endpoints: Sequence[Endpoint] = ()) -> None:
        self.endpoints = tuple(endpoints)

    def advice(self, first_bytes: bytes, *, is_tls_port: bool = False) -> str:
        """What the client seems to speak and which port it should use.

        `is_tls_port`: the bytes came where a TLS handshake was expected.
        """
        what = spoken(first_bytes)
        if what is None:
            return "it looks like no protocol that is known here"
        if what is Spoken.TLS:
            return "it looks like TLS, which this port does not speak: connect without TLS"
        text = f"it looks like {what.value}"
        if is_tls_port:
            text += " without TLS, and this port speaks TLS alone: connect with TLS"
        addresses = ", ".join(self._addresses(what))
        return f"{text}; the node speaks {what.value} at {addresses}" if addresses else text

    def _addresses(self, what: Spoken) -> list[str]:
        names = {
            Spoken.GRPC: ("grpc",),
            Spoken.HTTP: ("http", "https"),
            Spoken.KAFKA: ("kafka",),
        }.get(what, ())
        return [
            f"{endpoint.advertised} (TLS)" if is_tls else endpoint.advertised
            for endpoint in self.endpoints
            for protocol, _, inner in (endpoint.protocol.partition("+"),)
            for is_tls in (bool(inner) or protocol == "https",)
            if protocol in names
        ]
