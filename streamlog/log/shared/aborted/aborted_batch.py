"""What the txn stream stores: entries of aborted transactions, one record each."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.format.kafka_files.transaction_index import AbortedTxn, encode_aborted
from streamlog.model.batch import RecordBatch


def aborted_batch(entries: Sequence[AbortedTxn]) -> RecordBatch:
    """The stream has no use for timestamps."""
    return RecordBatch(len(entries), 0, (encode_aborted(entries),))
