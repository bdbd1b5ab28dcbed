"""Who presented a certificate: `User:` and the subject's distinguished name, as Kafka has it.

The name is RFC 2253's, its most specific part first, such as `User:CN=alice,OU=etl,O=Acme`.
Characters beyond ASCII stand as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from streamlog.server.context import ANONYMOUS

PREFIX = "User:"
_ESCAPED = re.compile(rb"\\(?:([89A-Fa-f][0-9A-Fa-f])|(.))", re.DOTALL)
_SPECIAL = re.compile(r'([,+"\\<>;])|([\x00-\x1f\x7f])')
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "givenName": "GN",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "street",
    "surname": "SN",
    "userId": "UID",
}
"""OpenSSL's short names, where they differ from the long ones of Python's `ssl`."""


def of_auth_context(presented: Mapping[str, Any]) -> str:
    """The principal of a gRPC call, from its `auth_context()`."""
    subject = presented.get("x509_subject")
    if not subject:
        return PREFIX if presented.get("x509_pem_cert") else ANONYMOUS
    name = _ESCAPED.sub(_unescaped, next(iter(subject)))
    return PREFIX + name.decode("utf-8", "replace")


def of_peer_certificate(certificate: Mapping[str, Any] | None) -> str:
    """The principal of a connection, from `SSLObject.getpeercert()`."""
    if not certificate:
        return ANONYMOUS
    parts = [
        "+".join(f"{_SHORT.get(name, name)}={_escape(value)}" for name, value in part)
        for part in reversed(certificate.get("subject", ()))
    ]
    return PREFIX + ",".join(parts)


def _unescaped(found: re.Match[bytes]) -> bytes:
    """The byte of an escaped one above 127; other escapes stay."""
    return bytes.fromhex(found[1].decode()) if found[1] else found[0]


def _escape(value: str) -> str:
    text = _SPECIAL.sub(
        lambda found: f"\\{found[1]}" if found[1] else f"\\{ord(found[2]):02X}", value
    )
    if text.startswith(("#", " ")):
        text = "\\" + text
    if value.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text
