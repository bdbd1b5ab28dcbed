"""Reading a partition as it is stored, for dumps. Not part of the public client."""

from __future__ import annotations

from streamlog.client.consume.consumer import Consumer


class StoredBatchesConsumer(Consumer):
    """A consumer whose `poll_batches` returns markers of transactions, too; `poll` is of no use."""

    _keeps_control_batches = True
