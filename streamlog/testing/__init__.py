"""What the tests of users import: conformance classes, media and disks in memory, a simulator.

Imports any part of the product. Used by tests alone, those of users and of this project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.runtime.exports import lazy_exports

if TYPE_CHECKING:
    from streamlog.testing.basic_kv import BasicKV as BasicKV
    from streamlog.testing.basic_streams import Backing as Backing
    from streamlog.testing.basic_streams import BasicStreamClient as BasicStreamClient
    from streamlog.testing.clocks import ManualClock as ManualClock
    from streamlog.testing.file_streams import FileMedium as FileMedium
    from streamlog.testing.kv_conformance import KVStoreConformance as KVStoreConformance
    from streamlog.testing.logs.cleaning_conformance import (
        CleaningConformance as CleaningConformance,
    )
    from streamlog.testing.logs.condition_conformance import (
        ConditionConformance as ConditionConformance,
    )
    from streamlog.testing.logs.log_conformance import LogConformance as LogConformance
    from streamlog.testing.logs.log_conformance import LogUnderTest as LogUnderTest
    from streamlog.testing.logs.producer_conformance import (
        ProducerConformance as ProducerConformance,
    )
    from streamlog.testing.logs.transaction_conformance import (
        TransactionConformance as TransactionConformance,
    )
    from streamlog.testing.memory_streams import MemoryMedium as MemoryMedium
    from streamlog.testing.store_conformance import ObjectStoreConformance as ObjectStoreConformance
    from streamlog.testing.stream_conformance import MediumUnderTest as MediumUnderTest
    from streamlog.testing.stream_conformance import StreamConformance as StreamConformance
    from streamlog.testing.tiers.metadata_conformance import (
        RemoteLogMetadataManagerConformance as RemoteLogMetadataManagerConformance,
    )
    from streamlog.testing.tiers.storage_conformance import (
        RemoteStorageManagerConformance as RemoteStorageManagerConformance,
    )
    from streamlog.testing.torn_disk import TornDisk as TornDisk

__all__ = [
    "Backing",
    "BasicKV",
    "BasicStreamClient",
    "CleaningConformance",
    "ConditionConformance",
    "FileMedium",
    "KVStoreConformance",
    "LogConformance",
    "LogUnderTest",
    "ManualClock",
    "MediumUnderTest",
    "MemoryMedium",
    "ObjectStoreConformance",
    "ProducerConformance",
    "RemoteLogMetadataManagerConformance",
    "RemoteStorageManagerConformance",
    "StreamConformance",
    "TornDisk",
    "TransactionConformance",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "BasicKV": "streamlog.testing.basic_kv",
        "Backing": "streamlog.testing.basic_streams",
        "BasicStreamClient": "streamlog.testing.basic_streams",
        "ManualClock": "streamlog.testing.clocks",
        "FileMedium": "streamlog.testing.file_streams",
        "KVStoreConformance": "streamlog.testing.kv_conformance",
        "CleaningConformance": "streamlog.testing.logs.cleaning_conformance",
        "ConditionConformance": "streamlog.testing.logs.condition_conformance",
        "LogConformance": "streamlog.testing.logs.log_conformance",
        "LogUnderTest": "streamlog.testing.logs.log_conformance",
        "MemoryMedium": "streamlog.testing.memory_streams",
        "ObjectStoreConformance": "streamlog.testing.store_conformance",
        "ProducerConformance": "streamlog.testing.logs.producer_conformance",
        "MediumUnderTest": "streamlog.testing.stream_conformance",
        "StreamConformance": "streamlog.testing.stream_conformance",
        "RemoteLogMetadataManagerConformance": "streamlog.testing.tiers.metadata_conformance",
        "RemoteStorageManagerConformance": "streamlog.testing.tiers.storage_conformance",
        "TornDisk": "streamlog.testing.torn_disk",
        "TransactionConformance": "streamlog.testing.logs.transaction_conformance",
    },
)
