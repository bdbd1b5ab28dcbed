"""/metrics, /livez and /readyz behind TLS, or plain where the settings say so."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from streamlog.client import Tls, aio
from tests.support.certificates import Authority
from tests.support.running_node import running_node


async def get(url: str, context: ssl.SSLContext | bool = True) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
        return response.status, await response.text()


def names(authority: Authority, **more: Any) -> dict[str, Any]:
    return authority.issue("node").flags() | more


def test_pages_are_read_by_https_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=authority.ca)

    async def main() -> None:
        async with running_node(**names(authority)) as node:
            url = f"//{node.banner.http}"
            assert (await get(f"https:{url}/readyz", context))[0] == 200
            status, page = await get(f"https:{url}/metrics", context)
            assert status == 200
            assert "streamlog_tls_reload_failed 0.0" in page
            (expiry,) = (
                float(line.split()[1])
                for line in page.splitlines()
                if line.startswith("streamlog_tls_certificate_expiry_seconds ")
            )
            assert 29 * 86_400 < expiry < 31 * 86_400
            with pytest.raises(aiohttp.ClientError):
                await get(f"http:{url}/readyz")
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await get(f"https:{url}/readyz")
            assert f"https:{url}/metrics" in node.banner.as_text()
            assert "--tls-ca CA.pem hello" in node.banner.as_text()

    asyncio.run(main())


def test_certificates_are_required_of_scrapers_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.issue("scraper")
    context = ssl.create_default_context(cafile=authority.ca)

    async def main() -> None:
        async with running_node(**names(authority, tls__client_ca=str(authority.ca))) as node:
            url = f"https://{node.banner.http}/livez"
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await get(url, context)
            context.load_cert_chain(client.certificate, client.key)
            assert (await get(url, context))[0] == 200
            words = "--tls-ca CA.pem --tls-cert CLIENT.pem --tls-key CLIENT.key hello"
            assert words in node.banner.as_text()

    asyncio.run(main())


def test_http_may_stay_plain_beside_grpc_with_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        async with (
            running_node(**names(authority, tls__http=False)) as node,
            aio.Admin(node.banner.grpc, tls=Tls(ca=str(authority.ca))) as admin,
        ):
            assert (await get(f"http://{node.banner.http}/readyz"))[0] == 200
            shown = {listener.protocol for listener in (await admin.status()).listeners}
            assert shown == {"http", "grpc+tls", "kafka+tls"}

    asyncio.run(main())


def test_the_status_has_an_alarm_for_files_that_are_not_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        flags = names(authority)
        async with (
            running_node(**flags) as node,
            aio.Admin(node.banner.grpc, tls=Tls(ca=str(authority.ca))) as admin,
        ):
            assert not (await admin.status()).alarms
            Path(flags["tls__key"]).unlink()
            assert node.node.tls is not None
            node.node.tls.reload()
            (alarm,) = (await admin.status()).alarms
            assert flags["tls__key"] in alarm
            assert node.metric("streamlog_tls_reload_failed") == 1

    asyncio.run(main())
