"""Conditional appends and fencing tokens of a shared log against a list, with crashes."""

from __future__ import annotations

from streamlog.log.api.config import LogConfig
from streamlog.testing.basic_streams import BasicStreamClient
from streamlog.testing.clocks import ManualClock
from streamlog.testing.memory_streams import MemoryMedium
from tests.log.conditions_model import MODEL, ConditionsMachine
from tests.log.harness import SharedLogUnderTest


class SharedConditionsMachine(ConditionsMachine):
    def under_test(self) -> SharedLogUnderTest:
        medium = MemoryMedium()

        async def client_of(clock: ManualClock) -> BasicStreamClient:
            return medium.client(clock)

        config = LogConfig(checkpoint_interval_batches=5, meta_compaction_bytes=700)
        return SharedLogUnderTest(client_of, {"internal.segment.bytes": "700"}, config)


SharedConditionsMachine.TestCase.settings = MODEL
TestSharedConditionsModel = SharedConditionsMachine.TestCase
