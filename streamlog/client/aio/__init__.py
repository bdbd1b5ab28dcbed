"""Clients of a streamlog node for asyncio; names and settings as in `streamlog.client`.

Imports the parts of `client` that do no I/O. Used by applications.
"""

from streamlog.client.aio.admin import Admin
from streamlog.client.aio.consumer import Consumer
from streamlog.client.aio.delivery import Delivery, ManyDeliveries
from streamlog.client.aio.kv import KV
from streamlog.client.aio.partitions import Partitions
from streamlog.client.aio.producer import Producer
from streamlog.client.aio.streams import Streams

__all__ = [
    "KV",
    "Admin",
    "Consumer",
    "Delivery",
    "ManyDeliveries",
    "Partitions",
    "Producer",
    "Streams",
]
