"""Markers as WriteTxnMarkers asks for them."""

from __future__ import annotations

from streamlog.kafka.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
)
from tests.server.kafka.transactions.asking import Topics


def asked(producer_id: int, topics: Topics, *, is_commit: bool = False) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=0,
        transaction_result=is_commit,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=numbers)
            for name, numbers in topics.items()
        ],
        coordinator_epoch=5,
    )
