"""The manager over the KV store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.tiers.metadata_conformance import (
    OpenManager,
    RemoteLogMetadataManagerConformance,
)
from streamlog.tiered.api import RemoteLogMetadataManager
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager


class TestKVManager(RemoteLogMetadataManagerConformance):
    @asynccontextmanager
    async def make(self) -> AsyncIterator[OpenManager]:
        kv = BasicKV()

        async def opened() -> RemoteLogMetadataManager:
            return KVRemoteLogMetadataManager(kv)

        yield opened
