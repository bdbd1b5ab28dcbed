"""Refuses records without a key on compacted topics: compaction could not tell which one to keep.

It decodes every record, which no other topic pays for. Source: Kafka's LogValidator.validateKey.

Where nobody can tell whether the topic is compacted, nothing may be wrong with the record: clients
are to keep it and send it again, so that error is retryable.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.codec.batch import ScannedBatch
from streamlog.codec.piecewise import iterate
from streamlog.errors import InvalidRecord, StreamlogError, Unavailable
from streamlog.log.api.topic_config import TopicConfig


def check_keys(batches: Sequence[ScannedBatch], config: TopicConfig, record_bytes_max: int) -> None:
    """Does nothing where the topic takes records without a key.

    Errors: InvalidRecord, or Unavailable where it is unknown whether the topic is compacted, with
    the first record at fault in `record_index`; CorruptMessage.
    """
    if not config.needs_keys:
        return
    for batch in batches:
        for index, (_, _, key, _, _) in enumerate(iterate(batch.view, record_bytes_max)):
            if key is None:
                raise _refusal(config, index)


def _refusal(config: TopicConfig, index: int) -> StreamlogError:
    if config.is_policy_unknown:
        return Unavailable(
            f"record {index} of the batch has no key, and the topic may be compacted: its "
            "cleanup.policy is the brokers' log.cleanup.policy, which this node cannot read. Retry "
            "once it can, or set cleanup.policy for the topic itself",
            name="log.cleanup.policy",
            record_index=index,
        )
    return InvalidRecord(
        f"record {index} of the batch has no key, and the topic is compacted "
        "(cleanup.policy=compact): give each record a key",
        record_index=index,
    )
