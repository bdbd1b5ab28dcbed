"""The ObjectStore contract over a real S3 server, through both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.opening import open_store
from streamlog.objectstore.store_config import StoreConfig
from streamlog.objectstore.url import parse_store_url
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock
from streamlog.testing.store_conformance import ObjectStoreConformance
from tests.support.s3 import S3Tests


class S3Conformance(ObjectStoreConformance):
    tells_own_time = True
    client = "boto3"
    config = StoreConfig()

    @pytest.fixture(autouse=True)
    def _server(self, s3: S3Tests) -> None:
        self.url = s3.new_url(client=self.client)

    def store(self, clock: ManualClock) -> AbstractAsyncContextManager[ObjectStore]:
        @asynccontextmanager
        async def make() -> AsyncIterator[ObjectStore]:
            offload = ThreadOffload()
            url = parse_store_url(self.url)
            store = await open_store(url, offload, SystemClock(), config=self.config)
            yield store
            await store.close()
            await offload.close()

        return make()


class TestBoto3(S3Conformance):
    pass


class TestBoto3Hedged(S3Conformance):
    """GETs are sent again at once, as they are on a slow day."""

    config = StoreConfig(hedge_get_delay_ms_min=1, hedge_get_share_max=1)


class TestObstore(S3Conformance):
    client = "obstore"
