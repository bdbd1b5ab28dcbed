"""Shared logs keep what Kafka's tests say of producers, over each medium that ships."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.basic_streams import BasicStreamClient
from streamlog.testing.file_streams import FileMedium
from streamlog.testing.logs.producer_conformance import ProducerConformance
from streamlog.testing.memory_streams import MemoryMedium
from tests.log.harness import shared_log


class TestProducersOverMemory(ProducerConformance):
    batches_remembered = 32

    def make(self, configs: Mapping[str, str]) -> AbstractAsyncContextManager[Any]:
        medium = MemoryMedium()

        async def client_of(clock: Clock) -> BasicStreamClient:
            return medium.client(clock)

        return shared_log(client_of, configs)


class TestProducersOverFiles(ProducerConformance):
    batches_remembered = 32

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    @asynccontextmanager
    async def make(self, configs: Mapping[str, str]) -> AsyncIterator[Any]:
        offload = ThreadOffload()

        async def client_of(clock: Clock) -> BasicStreamClient:
            return (await FileMedium.open(self.path, offload)).client(clock)

        async with shared_log(client_of, configs) as under_test:
            yield under_test
        await offload.close()
