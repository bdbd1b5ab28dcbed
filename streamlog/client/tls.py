"""How a client reaches a node that speaks TLS, and why it does not, in words.

gRPC reports a failed handshake as "failed to connect to all addresses" and OpenSSL's own words;
where the node refuses the client, it reports no more than "Socket closed". `handshake_error` reads
the former; for the latter, `Diagnosis` makes a handshake of its own, which is told the reason.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

import grpc

from streamlog.errors import InvalidConfig, StreamlogError, TlsHandshakeFailed
from streamlog.runtime.certificates import PemFile, read_authorities, read_identity

PROBE_S = 2.0
DIAGNOSED_EVERY_S = 5.0
"""A server that restarts closes connections, too, and is not asked at each of them."""
_CLOSED = "Socket closed"


@dataclass(frozen=True, slots=True)
class Tls:
    """Settings of a connection by TLS; files are PEM, and read when a client is made.

    `ca`: the authorities that sign nodes' certificates; None: the public ones that come with gRPC.
    `certificate`, `key`: for nodes that ask clients for one; without `key` it is in the
    certificate's file. `server_name`: what the node's certificate has to name, where that is not
    the host that the client connects to.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.certificate is None:
            raise InvalidConfig("a key is given without its certificate; give both", name="key")
        for name in ("ca", "certificate", "key", "server_name"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidConfig(f"tls.{name} is {value!r}; give a text, or None", name=name)

    def context(self) -> ssl.SSLContext:
        """For a handshake by Python's `ssl`. Errors: InvalidConfig, for unusable files."""
        certificate, key = self._identity_files()
        if certificate is None or key is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        else:
            context = read_identity(certificate, key, is_server=False).context
        if self.ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=read_authorities(PemFile("tls ca", self.ca)))
        return context

    def credentials(self) -> grpc.ChannelCredentials:
        """Errors: InvalidConfig, for files that cannot be used."""
        authorities = None
        if self.ca is not None:
            authorities = read_authorities(PemFile("tls ca", self.ca)).encode()
        certificate, key = self._identity_files()
        if certificate is None or key is None:
            return grpc.ssl_channel_credentials(authorities)
        identity = read_identity(certificate, key, is_server=False)
        return grpc.ssl_channel_credentials(authorities, identity.key, identity.chain)

    def _identity_files(self) -> tuple[PemFile | None, PemFile | None]:
        if self.certificate is None:
            return None, None
        key = PemFile("tls key", self.key or self.certificate)
        return PemFile("tls certificate", self.certificate), key


class Security(NamedTuple):
    """What a channel is made with."""

    credentials: grpc.ChannelCredentials
    options: tuple[tuple[str, str], ...]


def checked(tls: Tls | bool | None) -> Tls | None:
    """None: no TLS. Errors: InvalidConfig for anything but a Tls or a bool."""
    if isinstance(tls, Tls):
        return tls
    if tls is None or isinstance(tls, bool):
        return Tls() if tls else None
    raise InvalidConfig(f"tls is {tls!r}; give True, False or streamlog.client.Tls(…)", name="tls")


def security(tls: Tls | None) -> Security | None:
    """Errors: InvalidConfig, for files that cannot be used."""
    if tls is None:
        return None
    name = tls.server_name
    options = () if name is None else (("grpc.ssl_target_name_override", name),)
    return Security(tls.credentials(), options)


_REFUSALS = (
    (
        re.compile("certificate has expired|certificate is not yet valid"),
        "expired",
        "the node's certificate is not valid now ({found}): the node needs a new one, or a clock "
        "is wrong",
    ),
    (
        re.compile("CERTIFICATE_VERIFY_FAILED(?:: ([^:]+))?"),
        "untrusted",
        "the node's certificate is signed by an authority that is not trusted here ({found}): name "
        "the file of its authority (tls ca: Tls(ca=…), --tls-ca, tlsCa)",
    ),
    (
        re.compile("Hostname Verification Check failed"),
        "host_mismatch",
        "the node's certificate is for another host name than the one that was connected to: use a "
        "name that is in it, or give that name (Tls(server_name=…), --tls-server-name, "
        "tlsServerName)",
    ),
    (
        re.compile("WRONG_VERSION_NUMBER|HTTP_REQUEST|UNEXPECTED_MESSAGE"),
        "plaintext_server",
        "the server there does not speak TLS: connect without it, or to another port",
    ),
    (
        re.compile("CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE"),
        "certificate_required",
        "the node asks for a client's certificate: give one that its authorities signed "
        "(Tls(certificate=…, key=…), --tls-cert and --tls-key, tlsCertificate and tlsKey)",
    ),
    (
        re.compile("ALERT_(UNKNOWN_CA|BAD_CERTIFICATE|CERTIFICATE_\\w+|ACCESS_DENIED)"),
        "certificate_refused",
        "the node refuses this client's certificate: give one that the node's tls.client_ca "
        "signed, and that is valid now",
    ),
    (
        re.compile("(?:Tls|Ssl|TLS|SSL) handshake failed[^:]*: (.*)"),
        "other",
        "the TLS handshake failed ({found})",
    ),
)


def handshake_error(details: str) -> TlsHandshakeFailed | None:
    """The error behind gRPC's words, or OpenSSL's; None: it was no handshake."""
    for pattern, reason, text in _REFUSALS:
        found = pattern.search(details)
        if found is not None:
            words = next(filter(None, found.groups()), found[0])
            return TlsHandshakeFailed(text.format(found=words.strip()[:200]), reason=reason)
    return None


class Diagnosis:
    """Looks into refusals of one server, in a thread beside the retries of a call.

    So a retry waits for nothing; the reason is there for the next one.
    """

    def __init__(self, server: str, tls: Tls | None) -> None:
        self._server = server
        self._tls = tls
        self._begun_at = -DIAGNOSED_EVERY_S
        self._found: TlsHandshakeFailed | None = None

    def of(self, error: StreamlogError) -> StreamlogError:
        """The reason, where it is known; else the error itself."""
        text = str(error)
        if "failed to connect" not in text or _CLOSED not in text:
            return error
        found, self._found = self._found, None
        if found is not None:
            return found
        now = time.monotonic()
        if now - self._begun_at >= DIAGNOSED_EVERY_S:
            self._begun_at = now
            threading.Thread(target=self._look, name="streamlog-tls-probe", daemon=True).start()
        return error

    def _look(self) -> None:
        self._found = diagnose(self._server, self._tls)


def diagnose(server: str, tls: Tls | None) -> TlsHandshakeFailed | None:
    """Why the node closes connections, by a handshake that takes PROBE_S at most; None: unknown.

    It blocks. The certificate of the node is not checked here: gRPC has done that.
    """
    host, _, port = server.rpartition(":")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls is None else tls.context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        address = (host.strip("[]"), int(port))
        with socket.create_connection(address, PROBE_S) as plain:
            plain.settimeout(PROBE_S)
            with context.wrap_socket(plain, server_hostname=host.strip("[]")) as secured:
                # By TLS 1.3 the node looks at a certificate when the client is done; gRPC sends
                # its settings then, or closes the connection without a word.
                if tls is not None and not secured.recv(1):
                    return _refused(tls)
    except ssl.SSLError as error:
        if tls is not None:
            return handshake_error(error.reason or str(error))
        return None if _is_plaintext(error) else _speaks_tls()
    except (OSError, ValueError, InvalidConfig):
        return None
    return _speaks_tls() if tls is None else None


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
