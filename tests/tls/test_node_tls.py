"""The node's certificates follow their files; broken files leave the old ones in use."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from streamlog.errors import InvalidConfig
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.server.tls.node_tls import NodeTls, node_tls
from streamlog.settings.tls import TlsConfig
from tests.support.certificates import Authority, Pair


def config(pair: Pair, ca: Path | None = None, auth: str | None = None) -> TlsConfig:
    return TlsConfig(
        certificate=str(pair.certificate),
        key=str(pair.key),
        client_ca=None if ca is None else str(ca),
        client_auth=auth,
    )


def test_new_files_are_used_and_unchanged_ones_are_not_read_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    tls = NodeTls(config(pair))
    first = tls.current
    tls.reload()
    assert tls.current is first
    pair.write(authority.issue("new", days=60))
    tls.reload()
    assert tls.current is not first
    assert tls.current.expires_s > first.expires_s + 86_400


def test_a_broken_file_keeps_the_old_ones_and_raises_an_alarm_until_it_is_mended(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    tls = NodeTls(config(pair))
    first = tls.current
    whole = pair.certificate.read_bytes()
    pair.certificate.write_bytes(whole[:100])
    for _ in range(2):
        tls.reload()
        assert tls.current is first
        assert tls.is_reload_failed
        assert str(pair.certificate) in tls.alarms()[0]
    pair.certificate.write_bytes(whole)
    tls.reload()
    assert tls.alarms() == []


def test_a_certificate_without_its_new_key_waits_for_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, new = authority.issue("node"), authority.issue("new")
    tls = NodeTls(config(pair))
    first = tls.current
    pair.certificate.write_bytes(new.certificate.read_bytes())
    tls.reload()
    assert tls.current is first
    pair.key.write_bytes(new.key.read_bytes())
    tls.reload()
    assert tls.current.chain == new.certificate.read_bytes()


def test_removed_files_keep_the_old_ones(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("node")
    tls = NodeTls(config(pair))
    pair.key.unlink()
    tls.reload()
    assert tls.is_reload_failed


def test_what_else_hangs_keeps_no_new_files_away(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, new = authority.issue("node"), authority.issue("new")
    tls = NodeTls(config(pair))
    new_chain = new.certificate.read_bytes()
    pair.write(new)

    async def main() -> None:
        others = [lane for lane in Lane if lane is not Lane.TLS]
        offload, answers = ThreadOffload(dict.fromkeys(others, 1)), threading.Event()
        hanging = [asyncio.ensure_future(offload.run(lane, answers.wait)) for lane in others]
        try:
            await asyncio.wait_for(tls.tick(offload), 30)
        finally:
            answers.set()
            await asyncio.gather(*hanging)
            await offload.close()

    asyncio.run(main())
    assert tls.current.chain == new_chain


class Later:
    """A clock that is days ahead."""

    def now_ms(self) -> int:
        return 4_000_000_000_000

    def monotonic(self) -> float:
        return 0.0


def test_a_certificate_that_expires_in_use_is_an_alarm(tmp_path: Path) -> None:
    tls = NodeTls(config(Authority(tmp_path).issue("node")), Later())
    assert tls.expires_in_s() < 0
    assert "has expired" in tls.alarms()[0]


def test_client_authorities_make_certificates_required(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    assert NodeTls(config(pair, authority.ca)).requires_certificates
    assert not NodeTls(config(pair, authority.ca, "requested")).requires_certificates
    assert not NodeTls(config(pair)).requires_certificates


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with pytest.raises(InvalidConfig, match="--tls-client-ca"):
        node_tls(config(authority.issue("node"), auth="required"))
    with pytest.raises(InvalidConfig, match="--tls-cert"):
        node_tls(TlsConfig(client_ca=str(authority.ca)))
    assert node_tls(TlsConfig()) is None
