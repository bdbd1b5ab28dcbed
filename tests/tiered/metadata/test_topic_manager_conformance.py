"""The manager over a topic keeps the contract, over logs in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamlog.testing.tiers.metadata_conformance import (
    OpenManager,
    RemoteLogMetadataManagerConformance,
)
from streamlog.tiered.api import RemoteLogMetadataManager
from streamlog.tiered.metadata.topic_manager import TopicBasedRemoteLogMetadataManager
from tests.log.cluster import cluster


class TestTopicManager(RemoteLogMetadataManagerConformance):
    @asynccontextmanager
    async def make(self) -> AsyncIterator[OpenManager]:
        async with cluster() as made:

            async def opened() -> RemoteLogMetadataManager:
                """On logs of the next process."""
                await made.crash()
                logs = await made.node()
                return TopicBasedRemoteLogMetadataManager(logs, made.clock)

            yield opened
