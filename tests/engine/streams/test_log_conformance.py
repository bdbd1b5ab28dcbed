"""Shared logs on the engine: the log conformance class over both WAL modes.

The engine works in real time; the time of the log is the test's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlog.engine.config import StreamEngineConfig, UploadConfig
from streamlog.log.topics.topic_record import encode_partition, partition_key
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.cleaning_conformance import CleaningConformance
from streamlog.testing.logs.condition_conformance import ConditionConformance
from streamlog.testing.logs.log_conformance import LogConformance
from streamlog.testing.logs.transaction_conformance import TransactionConformance
from streamlog.wal.config import WalConfig, WalMode
from tests.engine.streams.under_test import EngineUnderTest
from tests.log.harness import PARTITION, SharedLogUnderTest, shared_log
from tests.support.s3 import S3Tests

CONFIG = StreamEngineConfig(
    upload=UploadConfig(upload_interval_ms=5),
    wal=WalConfig(wal_bytes_max=8 << 20, file_bytes=1 << 20),
)


class ProcessClient:
    """The stream client of one process; `kill` is its crash, and the next one starts."""

    def __init__(self, engine: EngineUnderTest) -> None:
        self._engine = engine
        self._client = engine.client
        self.hold = engine.hold
        self.release = engine.release

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def kill(self) -> None:
        await self._engine.crashed()

    async def stop(self) -> None:
        """The engine closes with its exit stack."""


class _OnEngine:
    mode: WalMode
    path: Path
    store_url = ""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    @asynccontextmanager
    async def make(self, configs: Mapping[str, str]) -> AsyncIterator[SharedLogUnderTest]:
        async with asyncio.timeout(90), AsyncExitStack() as stack:
            engine = EngineUnderTest(self.mode, self.path, stack, CONFIG, self.store_url)
            await engine.start()

            async def client_of(_clock: ManualClock) -> Any:
                return ProcessClient(engine)

            async with shared_log(client_of, configs) as under_test:
                # An engine removes, when it starts, partitions that no key names.
                key = encode_partition(under_test.handle)
                await engine.kv.put_kv(partition_key(PARTITION), key)
                yield under_test


class _OverEngine(_OnEngine, ConditionConformance, LogConformance):
    """With every mode and store."""


class TestDiskMode(_OverEngine, TransactionConformance):
    mode = "disk"


class TestObjectMode(_OverEngine, TransactionConformance):
    mode = "object"


class TestDiskModeOnAFolder(_OverEngine):
    mode = "disk"

    @pytest.fixture(autouse=True)
    def _store(self, tmp_path: Path) -> None:
        self.store_url = f"local://{tmp_path}/objects"


class TestObjectModeOnS3(_OverEngine):
    mode = "object"

    @pytest.fixture(autouse=True)
    def _store(self, s3: S3Tests) -> None:
        self.store_url = s3.new_url()


class TestCleaningInObjectMode(_OnEngine, CleaningConformance):
    mode = "object"
