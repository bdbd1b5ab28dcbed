"""Refuses records without a key on compacted topics: compaction could not tell which one to keep.

It decodes every record, which no other topic pays for. Source: Kafka's LogValidator.validateKey.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.codec.batch import ScannedBatch
from streamlog.codec.piecewise import iterate
from streamlog.errors import InvalidRecord


def check_keys(batches: Sequence[ScannedBatch], record_bytes_max: int) -> None:
    """Errors: InvalidRecord, with the first record at fault in `record_index`; CorruptMessage."""
    for batch in batches:
        for index, (_, _, key, _, _) in enumerate(iterate(batch.view, record_bytes_max)):
            if key is None:
                raise InvalidRecord(
                    f"record {index} of the batch has no key, and the topic is compacted "
                    "(cleanup.policy=compact): give each record a key",
                    record_index=index,
                )
