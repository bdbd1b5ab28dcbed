"""How a client reaches a node that speaks TLS, and why it does not, in words.

gRPC reports a failed handshake as "failed to connect to all addresses" and OpenSSL's own words,
which `handshake_error` reads; where it reports less, `client/diagnosis.py` looks itself.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import NamedTuple

import grpc

from streamlog.errors import InvalidConfig, TlsHandshakeFailed
from streamlog.runtime.certificates import PemFile, read_authorities, read_identity


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
        match = pattern.search(details)
        if match is not None:
            words = next(filter(None, match.groups()), match[0])
            return TlsHandshakeFailed(text.format(found=words.strip()[:200]), reason=reason)
    return None
