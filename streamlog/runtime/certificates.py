"""Certificates and keys in PEM files: read, and checked by a handshake in memory before use.

The handshake finds what parsing does not: a key of another certificate, one that has expired or is
not for this purpose. It takes some milliseconds, and blocks.

Everything here raises InvalidConfig, which names the setting, the file and what to do.
"""

from __future__ import annotations

import re
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from streamlog.errors import InvalidConfig

_BEGIN = "-----BEGIN CERTIFICATE-----"
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_HANDSHAKE_STEPS_MAX = 8
PEM_BYTES_MAX = 4 << 20


class PemFile(NamedTuple):
    """`setting`: the name by which the user gave the file."""

    setting: str
    path: str

    def wrong(self, what: str) -> InvalidConfig:
        return InvalidConfig(f"{self.setting}, file {self.path}: {what}", name=self.setting)

    @property
    def place(self) -> str:
        """The path, with a leading ~ spelled out."""
        return str(Path(self.path).expanduser())

    def read(self) -> bytes:
        try:
            with Path(self.place).open("rb") as file:
                data = file.read(PEM_BYTES_MAX + 1)
        except OSError as error:
            raise self.wrong(f"cannot be read ({error.strerror}); give a PEM file") from error
        if len(data) > PEM_BYTES_MAX:
            raise self.wrong(f"is larger than {PEM_BYTES_MAX} bytes; give a PEM file")
        return data


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate, the intermediate ones behind it, and its private key, all PEM.

    `expires_s`: when the first of these certificates expires, seconds since 1970.
    """

    chain: bytes
    key: bytes
    expires_s: float
    context: ssl.SSLContext
    """Presents the certificate; of the kind, server or client, that the identity was read for."""


def read_identity(certificate: PemFile, key: PemFile, *, is_server: bool) -> Identity:
    """The certificate and its key, proven to fit together and to be valid now."""
    chain, private = certificate.read(), key.read()
    blocks = _certificates(chain)
    if not blocks:
        raise certificate.wrong(f"holds no certificate; PEM begins with {_BEGIN}")
    if b"PRIVATE KEY-----" not in private:
        raise key.wrong("holds no private key; PEM begins with -----BEGIN PRIVATE KEY-----")
    if b"ENCRYPTED" in private:
        raise key.wrong(
            "the key is encrypted, and nobody is there to type its passphrase: write it without, "
            "by `openssl pkey -in KEY -out PLAIN`, readable by this user alone"
        )
    kind = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
    context = _loaded(kind, certificate, key)
    if (certificate.read(), key.read()) != (chain, private):
        raise certificate.wrong("changed while it was read; it is read again soon")
    expiries = [_expiry_by_handshake(certificate, key, blocks[0], is_server=is_server)]
    expiries += _expiries(blocks)
    return Identity(chain, private, min(expiries), context)


def read_authorities(file: PemFile) -> str:
    """Certificates of authorities, at least one of them, without text around them."""
    data = file.read()
    blocks = _certificates(data)
    if not blocks:
        raise file.wrong(f"holds no certificate; PEM begins with {_BEGIN}")
    text = "\n".join(blocks)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        raise file.wrong(f"holds a certificate that cannot be read ({error.reason})") from error
    return text


def _loaded(kind: ssl._SSLMethod, certificate: PemFile, key: PemFile) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a passphrase here OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate.place, key.place, password=b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise key.wrong(
                f"the key does not match the certificate in {certificate.path}; give the key that "
                "the certificate was requested with"
            ) from error
        reason = error.reason or "it is cut off, or damaged"
        raise certificate.wrong(
            f"the certificate, or its key in {key.path}, cannot be used ({reason}); `openssl x509 "
            "-in CERTIFICATE -noout -text` shows what is in it"
        ) from error
    except OSError as error:
        raise certificate.wrong(f"cannot be read ({error.strerror})") from error
    return context


def _expiry_by_handshake(
    certificate: PemFile, key: PemFile, leaf: str, *, is_server: bool
) -> float:
    """When the leaf expires, as the other side of a handshake sees it."""
    server = _loaded(ssl.PROTOCOL_TLS_SERVER, certificate, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    verifier = client if is_server else server
    if not is_server:
        client.load_cert_chain(certificate.place, key.place, password=b"")
    verifier.verify_mode = ssl.CERT_REQUIRED
    # The leaf itself is trusted here: who signed it is the other side's matter.
    verifier.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    verifier.load_verify_locations(cadata=leaf)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for _ in range(_HANDSHAKE_STEPS_MAX):
            for side in sides:
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        peer = sides[0 if is_server else 1].getpeercert()
    except ssl.SSLCertVerificationError as error:
        raise certificate.wrong(
            f"{error.verify_message}; put a certificate there that is valid now and made for "
            f"{'servers' if is_server else 'clients'}"
        ) from error
    except (ssl.SSLError, ValueError) as error:
        raise certificate.wrong(f"a handshake with it fails ({error}); make another") from error
    return ssl.cert_time_to_seconds(str((peer or {})["notAfter"]))


def _expiries(blocks: list[str]) -> list[float]:
    """When the authorities' certificates among these expire."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata="\n".join(blocks))
    return [ssl.cert_time_to_seconds(str(ca["notAfter"])) for ca in context.get_ca_certs()]


def _certificates(data: bytes) -> list[str]:
    """The PEM blocks, without the text that files may have around them."""
    return [block.decode("ascii", "ignore") for block in _CERTIFICATE.findall(data)]
