"""ApiVersions: what is advertised is what is served, also to clients newer than the node."""

from __future__ import annotations

import asyncio
import struct

import pytest

from streamlog.kafka.messages.api_versions_request import ApiVersionsRequest
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.kafka.call import KafkaCall, Route
from tests.support.kafka_wire import API_VERSIONS, sized, wire


async def unused(call: KafkaCall, request: object) -> None:
    raise AssertionError("not asked for")


ROUTES = {ApiKey.PRODUCE: Route(unused), ApiKey.LIST_OFFSETS: Route(unused)}


@pytest.mark.parametrize("version", range(5))
def test_only_apis_with_a_handler_are_advertised(version: int) -> None:
    async def main() -> None:
        async with wire(ROUTES) as served:
            client = await served.client()
            response = await client.ask(ApiKey.API_VERSIONS, version, API_VERSIONS)
            assert response.error_code == 0
            told = {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}
            assert told == {
                # librdkafka before 2.11.1 compresses nothing for a node that does not say 0.
                ApiKey.PRODUCE: (0, APIS[ApiKey.PRODUCE].last),
                ApiKey.LIST_OFFSETS: (1, APIS[ApiKey.LIST_OFFSETS].last),
                ApiKey.API_VERSIONS: (0, 4),
            }
            if version >= 3:
                assert response.finalized_features_epoch == 0
                assert not response.finalized_features

    asyncio.run(main())


def test_a_version_to_come_is_answered_in_version_0_with_what_is_served() -> None:
    async def main() -> None:
        async with wire(ROUTES) as served:
            client = await served.client()
            header = struct.pack(">hhih", 18, 5, 8, 1) + b"c\0"
            client.send(sized(header + b"a body that nobody knows yet"))
            assert bytes(await client.frame()) == struct.pack(
                ">ihihhh", 8, KafkaError.UNSUPPORTED_VERSION, 1, 18, 0, 4
            )
            # The connection stays: the client asks again in the version that it was told.
            response = await client.ask(ApiKey.API_VERSIONS, 4, API_VERSIONS)
            assert response.error_code == 0

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n"])
def test_a_client_that_names_itself_in_other_letters_than_kafkas_is_refused(name: str) -> None:
    async def main() -> None:
        async with wire() as served:
            client = await served.client()
            request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
            response = await client.ask(ApiKey.API_VERSIONS, 3, request)
            assert response.error_code == KafkaError.INVALID_REQUEST

    asyncio.run(main())
