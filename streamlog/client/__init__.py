"""Clients of a streamlog node for threads; `streamlog.client.aio` has the same for asyncio."""

from streamlog.client.batches import BatchMetadata, RecordMetadata
from streamlog.client.delivery import Delivery, ManyDeliveries
from streamlog.client.producer import Producer

__all__ = [
    "BatchMetadata",
    "Delivery",
    "ManyDeliveries",
    "Producer",
    "RecordMetadata",
]
