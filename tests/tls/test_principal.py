"""A certificate's subject becomes the principal, alike over gRPC and over asyncio's listeners."""

from __future__ import annotations

import pytest

from streamlog.server.context import ANONYMOUS
from streamlog.server.tls.principal import of_auth_context, of_peer_certificate


@pytest.mark.parametrize(
    ("subject", "escaped", "principal"),
    [
        (
            (
                (("countryName", "DE"),),
                (("organizationName", "A, Inc"),),
                (("commonName", "a"),),
            ),
            b"CN=a,O=A\\, Inc,C=DE",
            "User:CN=a,O=A\\, Inc,C=DE",
        ),
        (((("commonName", "Jürgen"),),), b"CN=J\\C3\\BCrgen", "User:CN=Jürgen"),
        (((("commonName", "a\\c3"),),), b"CN=a\\\\c3", "User:CN=a\\\\c3"),
        (((("commonName", "#1 "),),), b"CN=\\#1\\ ", "User:CN=\\#1\\ "),
        (((("commonName", "a\n"),),), b"CN=a\\0A", "User:CN=a\\0A"),
        (((("userId", "u"), ("commonName", "a")),), b"UID=u+CN=a", "User:UID=u+CN=a"),
    ],
)
def test_both_spellings_give_one_name(
    subject: tuple[object, ...], escaped: bytes, principal: str
) -> None:
    assert of_peer_certificate({"subject": subject}) == principal
    assert of_auth_context({"x509_subject": [escaped]}) == principal


def test_without_a_certificate_a_client_is_anonymous() -> None:
    assert of_auth_context({"transport_security_type": [b"ssl"]}) == ANONYMOUS
    assert of_peer_certificate(None) == ANONYMOUS
    assert of_peer_certificate({}) == ANONYMOUS


def test_a_certificate_may_have_an_empty_subject() -> None:
    assert of_auth_context({"x509_pem_cert": [b"-----BEGIN"]}) == "User:"
    assert (
        of_peer_certificate({"subject": (), "subjectAltName": (("URI", "spiffe://a"),)}) == "User:"
    )
