"""PEM files are checked before they are used, and errors say which file and what to do."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from streamlog.errors import InvalidConfig
from streamlog.runtime.certificates import PemFile, read_authorities, read_identity
from tests.support.certificates import Authority, Pair


def read(pair: Pair, *, is_server: bool = True) -> float:
    return read_identity(
        PemFile("tls.certificate", str(pair.certificate)),
        PemFile("tls.key", str(pair.key)),
        is_server=is_server,
    ).expires_s


def refusal(pair: Pair) -> str:
    with pytest.raises(InvalidConfig) as caught:
        read(pair)
    return caught.value.message


@pytest.mark.parametrize("is_server", [True, False])
def test_an_identity_says_when_it_expires(tmp_path: Path, is_server: bool) -> None:
    pair = Authority(tmp_path).issue("node", days=2)
    assert read(pair, is_server=is_server) == pytest.approx(time.time() + 2 * 86_400, abs=60)


def test_certificate_and_key_may_share_a_file(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("node")
    both = tmp_path / "both.pem"
    both.write_bytes(b"Subject: J\xc3\xbcrgen\n" + pair.key.read_bytes())
    both.write_bytes(both.read_bytes() + pair.certificate.read_bytes())
    assert read(Pair(both, both)) > time.time()


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("node", expired=True)
    text = refusal(pair)
    assert f"file {pair.certificate}" in text
    assert "expired" in text


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    node, other = authority.issue("node"), authority.issue("other")
    text = refusal(Pair(node.certificate, other.key))
    assert text.startswith(f"tls.key, file {other.key}: the key does not match")


def test_an_encrypted_key_is_refused_with_the_command_that_decrypts_it(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("node")
    encrypted = tmp_path / "encrypted.key"
    command = f"openssl pkey -in {pair.key} -aes256 -passout pass:x -out {encrypted}"
    subprocess.run(command.split(), check=True, timeout=30)
    text = refusal(Pair(pair.certificate, encrypted))
    assert "encrypted" in text
    assert "openssl pkey -in" in text


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("node")
    missing, junk = tmp_path / "missing", tmp_path / "junk"
    junk.write_text("hello")
    assert f"tls.key, file {missing}: cannot be read" in refusal(Pair(pair.certificate, missing))
    assert "holds no certificate" in refusal(Pair(junk, pair.key))
    assert "holds no private key" in refusal(Pair(pair.certificate, pair.certificate))
    assert "Is a directory" in refusal(Pair(tmp_path, pair.key))
    damaged = tmp_path / "damaged"
    lines = pair.certificate.read_bytes().splitlines(keepends=True)
    damaged.write_bytes(b"".join(lines[:3] + lines[4:]))
    assert "cannot be used" in refusal(Pair(damaged, pair.key))


def test_authorities_are_certificates(tmp_path: Path) -> None:
    ca = Authority(tmp_path).ca
    plain = ca.read_text()
    ca.write_bytes(b"Issuer: J\xc3\xbcrgen\n" + plain.encode())
    assert read_authorities(PemFile("tls.client_ca", str(ca))) == plain.strip()
    ca.write_text("hello")
    with pytest.raises(InvalidConfig, match="holds no certificate"):
        read_authorities(PemFile("tls.client_ca", str(ca)))
