"""Why a server takes connections and serves no gRPC on them, in words.

gRPC tells some of it (`foreign_server`, `tls.handshake_error`). Where the server just closes the
connection, gRPC says no more than that; then `Diagnosis` connects itself, and asks by TLS and by
Kafka's protocol what is there.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time

from streamlog.client.tls import Tls, handshake_error
from streamlog.errors import Invalid, InvalidConfig, StreamlogError, TlsHandshakeFailed

PROBE_S = 2.0
DIAGNOSED_EVERY_S = 5.0
"""A server that restarts closes connections, too, and is not asked at each of them."""

NOT_GRPC = "not gRPC"
GRPC_PORT = "connect to the node's gRPC port, 9644 by default; its banner names it"
CLOSED_TEXT = (
    f" without a word of gRPC: it may be another protocol's port ({GRPC_PORT}), or a proxy whose "
    "node is away"
)
_NEVER_CONNECTED = "failed to connect"
_CLOSED = ("Socket closed", "Connection reset", "Broken pipe", "Handshake read failed")

_PROBE_ID = 0x5EED5EED
_KAFKA_VERSIONS = b"\0\0\0\x0a\0\x12\0\0" + _PROBE_ID.to_bytes(4, "big") + b"\xff\xff"
"""Kafka's ApiVersions in version 0, without a client id, behind its size. Every Kafka answers it
with the same correlation id, behind the answer's size."""


def foreign_server(details: str) -> Invalid | None:
    """The error behind gRPC's words about a server that answers in another protocol."""
    if "http1.x server" in details:
        return Invalid(
            f"the server there speaks HTTP/1, {NOT_GRPC}; a node's gRPC port is 9644 by default, "
            "9645 is its HTTP port"
        )
    if "Expected SETTINGS frame as the first frame" in details:
        return Invalid(f"the server there speaks another protocol, {NOT_GRPC}: {GRPC_PORT}")
    if "missing selected ALPN" in details:
        return _tls_without_grpc()
    return None


def is_closed(text: str) -> bool:
    """Whether gRPC's words are those for a connection that the server closed before any answer."""
    return _NEVER_CONNECTED in text and any(words in text for words in _CLOSED)


class Diagnosis:
    """Looks into refusals of one server, in a thread beside the retries of a call.

    So a retry waits for nothing; the reason is there for the next one.
    """

    def __init__(self, server: str, tls: Tls | None) -> None:
        self._server = server
        self._tls = tls
        self._begun_at = -DIAGNOSED_EVERY_S
        self._found: StreamlogError | None = None

    def of(self, error: StreamlogError) -> StreamlogError:
        """The reason, where it is known; else the error itself."""
        if not is_closed(str(error)):
            return error
        found, self._found = self._found, None
        if found is not None:
            return found
        now = time.monotonic()
        if now - self._begun_at >= DIAGNOSED_EVERY_S:
            self._begun_at = now
            threading.Thread(target=self._look, name="streamlog-probe", daemon=True).start()
        return error

    def now(self, error: StreamlogError) -> StreamlogError:
        """As `of`, and looks itself: it blocks."""
        return (diagnose(self._server, self._tls) if is_closed(str(error)) else None) or error

    def _look(self) -> None:
        self._found = diagnose(self._server, self._tls)


def diagnose(server: str, tls: Tls | None) -> StreamlogError | None:
    """Why the server closes connections; None: unknown. It blocks, for 2 PROBE_S or so at most."""
    host, _, port = server.rpartition(":")
    try:
        address = (host.strip("[]"), int(port))
        reason = _by_tls(address, tls)
        is_settled = reason is not None and reason.fields.get("reason") != "plaintext_server"
        return reason if is_settled else _by_kafka(address, tls) or reason
    except (OSError, ValueError, InvalidConfig):
        return None


def _by_tls(address: tuple[str, int], tls: Tls | None) -> StreamlogError | None:
    """What a handshake tells. The node's certificate is not checked here: gRPC has done that."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls is None else tls.context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(address, PROBE_S) as plain:
            plain.settimeout(PROBE_S)
            with context.wrap_socket(plain, server_hostname=address[0]) as secured:
                if secured.selected_alpn_protocol() != "h2":
                    return _tls_without_grpc()
                # By TLS 1.3 the node looks at a certificate when the client is done; gRPC sends
                # its settings then, or closes the connection without a word.
                if tls is not None and not secured.recv(1):
                    return _refused(tls)
    except ssl.SSLError as error:
        if tls is not None:
            return handshake_error(error.reason or str(error))
        return None if _is_plaintext(error) else _speaks_tls()
    except (ConnectionError, TimeoutError):
        return None
    return _speaks_tls() if tls is None else None


def _by_kafka(address: tuple[str, int], tls: Tls | None) -> StreamlogError | None:
    with socket.create_connection(address, PROBE_S) as connection:
        connection.settimeout(PROBE_S)
        connection.sendall(_KAFKA_VERSIONS)
        answer = b""
        while len(answer) < 8:
            received = connection.recv(8 - len(answer))
            if not received:
                return None
            answer += received
    if int.from_bytes(answer[4:], "big") != _PROBE_ID:
        return None
    without = "" if tls is None else " without TLS"
    return Invalid(f"the server there speaks Kafka's protocol{without}, {NOT_GRPC}: {GRPC_PORT}")


def _refused(tls: Tls) -> TlsHandshakeFailed | None:
    name = "CERTIFICATE_REQUIRED" if tls.certificate is None else "ALERT_BAD_CERTIFICATE"
    return handshake_error(name)


def _is_plaintext(error: ssl.SSLError) -> bool:
    """The other side answered with something else than TLS, or with nothing."""
    return error.reason in (None, "WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING")


def _speaks_tls() -> TlsHandshakeFailed:
    return TlsHandshakeFailed(
        "the node there speaks TLS, and this client does not: give its authority's file "
        "(tls=Tls(ca=…), --tls-ca, tlsCa)",
        reason="tls_server",
    )


def _tls_without_grpc() -> Invalid:
    return Invalid(
        f"the server there speaks TLS, but {NOT_GRPC} in it, as a node's Kafka and HTTP ports do: "
        f"{GRPC_PORT}"
    )
