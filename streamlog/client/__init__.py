"""Clients of a streamlog node for threads; `streamlog.client.aio` has the same for asyncio.

Imports generated code, the codec, the model and the ground, and no engine. Used by applications,
the command line, the demonstrations and Spark.
"""

from streamlog.client.admin import Admin
from streamlog.client.calls.topic import OffsetAndTimestamp
from streamlog.client.consume.consumer import Consumer
from streamlog.client.consume.records import ConsumerRecord, FetchedBatch
from streamlog.client.kv import KV
from streamlog.client.offset_resets import OffsetReset
from streamlog.client.partitions import PartitionAppendResult, PartitionInfo, Partitions, Record
from streamlog.client.produce.batches import BatchMetadata, RecordMetadata, RunOutcome
from streamlog.client.produce.delivery import Delivery, ManyDeliveries
from streamlog.client.produce.producer import Producer
from streamlog.client.staged_transactions import TransactionalStagedWriter
from streamlog.client.staging import StagedCommit, StagedObject, StagedWriter, WriterStatus
from streamlog.client.streams import Append, StreamBatch, StreamFetch, StreamInfo, Streams
from streamlog.client.tls import Tls

__all__ = [
    "KV",
    "Admin",
    "Append",
    "BatchMetadata",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "FetchedBatch",
    "ManyDeliveries",
    "OffsetAndTimestamp",
    "OffsetReset",
    "PartitionAppendResult",
    "PartitionInfo",
    "Partitions",
    "Producer",
    "Record",
    "RecordMetadata",
    "RunOutcome",
    "StagedCommit",
    "StagedObject",
    "StagedWriter",
    "StreamBatch",
    "StreamFetch",
    "StreamInfo",
    "Streams",
    "Tls",
    "TransactionalStagedWriter",
    "WriterStatus",
]
