"""A unified log keeps the contract of every log, over a real folder and over one that tears."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.condition_conformance import ConditionConformance
from streamlog.testing.logs.log_conformance import CONFIG, LogConformance, LogUnderTest
from streamlog.testing.logs.producer_conformance import ProducerConformance
from streamlog.testing.logs.transaction_conformance import TransactionConformance
from streamlog.testing.torn_folder import TornTree
from tests.unified.harness import DEFAULTS, unified_log


class TestOverARealFolder(
    ConditionConformance, LogConformance, ProducerConformance, TransactionConformance
):
    batches_remembered = DEFAULTS.producer_batches_remembered
    knows_append_times = False

    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path / "logs"

    @asynccontextmanager
    async def make(self, configs: CONFIG) -> AsyncIterator[LogUnderTest]:
        async with unified_log(lambda: SystemTree(self.root), configs) as under_test:
            yield under_test


class TestOverATornFolder(
    ConditionConformance, LogConformance, ProducerConformance, TransactionConformance
):
    batches_remembered = DEFAULTS.producer_batches_remembered
    knows_append_times = False

    @asynccontextmanager
    async def make(self, configs: CONFIG) -> AsyncIterator[LogUnderTest]:
        tree = TornTree(SeededRandom(7))
        async with unified_log(lambda: tree, configs, cut_power=tree.crash) as under_test:
            yield under_test
