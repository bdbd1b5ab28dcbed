"""The engine is a medium: the Stream conformance class over both modes, two nodes on one store.

In memory, and on what users have: a folder with RocksDB beside it, and an S3 server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from streamlog.testing.stream_conformance import StreamConformance
from streamlog.wal.config import WalMode
from tests.engine.streams.under_test import EngineUnderTest
from tests.support.s3 import S3Tests


class _OverEngine(StreamConformance):
    mode: WalMode
    path: Path
    store_url = ""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    @asynccontextmanager
    async def make(self) -> AsyncIterator[EngineUnderTest]:
        async with asyncio.timeout(90), AsyncExitStack() as stack:
            under_test = EngineUnderTest(self.mode, self.path, stack, store_url=self.store_url)
            await under_test.start()
            try:
                yield under_test
            finally:
                under_test.release()


class TestDiskMode(_OverEngine):
    mode = "disk"


class TestObjectMode(_OverEngine):
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
