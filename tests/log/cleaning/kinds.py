"""The kinds of log that the cleaner works on, for its conformance class."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.basic_streams import BasicStreamClient
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.cleaning_conformance import CleaningConformance
from streamlog.testing.logs.log_conformance import CONFIG
from streamlog.testing.memory_streams import MemoryMedium
from streamlog.testing.torn_folder import TornTree
from tests.log.harness import SharedLogUnderTest, shared_log
from tests.unified.harness import UnifiedLogUnderTest, unified_log


class SharedInMemory(CleaningConformance):
    @asynccontextmanager
    async def make(self, configs: CONFIG) -> AsyncIterator[SharedLogUnderTest]:
        medium = MemoryMedium()

        async def client_of(clock: ManualClock) -> BasicStreamClient:
            return medium.client(clock)

        async with shared_log(client_of, configs) as t:
            yield t


class UnifiedInMemory(CleaningConformance):
    @asynccontextmanager
    async def make(self, configs: CONFIG) -> AsyncIterator[UnifiedLogUnderTest]:
        torn = TornTree(SeededRandom(3))
        unified = {**configs, "log.type": "unified"}
        async with unified_log(lambda: torn, unified, cut_power=torn.crash) as t:
            yield t


class UnifiedInAFolder(CleaningConformance):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path / "logs"

    @asynccontextmanager
    async def make(self, configs: CONFIG) -> AsyncIterator[UnifiedLogUnderTest]:
        unified = {**configs, "log.type": "unified"}
        async with unified_log(lambda: SystemTree(self.root), unified) as t:
            yield t
