"""What a stopped node's topic `__remote_log_metadata` says of a partition's remote segments."""

from __future__ import annotations

import sys

from streamlog.errors import Corrupt
from streamlog.log.api.internal_topics import REMOTE_LOG_METADATA
from streamlog.reading.offline import OfflineTopics
from streamlog.tiered.api import TopicIdPartition
from streamlog.tiered.metadata.placement import metadata_partition_of
from streamlog.tiered.metadata.replay import RemoteMetadataAtRest, RemoteMetadataReplay
from streamlog.tiered.metadata.state import RemoteMetadataState


async def remote_metadata_of(
    topics: OfflineTopics, partition: TopicIdPartition
) -> RemoteMetadataAtRest:
    """It reads the one metadata partition that tells of the partition; of a topic that is not there
    it knows nothing, as before the first copy.

    Errors: WalPending (the end of it is in a write-ahead log alone), Corrupt, UnsupportedVersion
    (records of a newer program), Unavailable.
    """
    topic = (await topics.topics()).get(REMOTE_LOG_METADATA)
    if topic is None:
        return RemoteMetadataAtRest(RemoteMetadataState())
    number = metadata_partition_of(partition, topic.partitions)
    name, of = f"{REMOTE_LOG_METADATA}-{number}", (REMOTE_LOG_METADATA, number)
    offsets = (await topics.partitions([of])).get(of)
    if offsets is None:
        raise Corrupt(f"the metadata store has no {name}, though the topic has it: run fsck")
    replay = RemoteMetadataReplay(name)
    async for data in topics.batches(of, offsets.start, sys.maxsize):
        for offset, value in replay.records(data, offsets.start):
            replay.apply(offset, value)
    return RemoteMetadataAtRest(replay.state)
