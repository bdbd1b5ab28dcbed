"""What clients are told of one partition: its leader, its leader epoch, its replicas.

The store replicates, so a partition has one replica, its leader. A leader that is no live node is
shown as Kafka shows one: LEADER_NOT_AVAILABLE, and the replica as offline; clients ask again.

The leader epoch is that of the log when it was last open here, and -1, "unknown", before that. With
-1 a client sends no epoch in its requests, and nothing is checked; the answers to its first Fetch
or ListOffsets have the epoch. So nothing has to be opened for an answer about 10,000 partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from streamlog.kafka.protocol.errors import KafkaError
from streamlog.model.partition import TopicPartition
from streamlog.server.kafka.cluster_view import ClusterView
from streamlog.server.services.topic_views import TopicViews

EPOCH_UNKNOWN = -1
NO_LEADER = -1
_NOBODY: tuple[int, ...] = ()


class PartitionLeadership(NamedTuple):
    """Replicas in sync are the replicas."""

    error_code: int
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    offline: tuple[int, ...]


class PartitionStates:
    def __init__(self, views: TopicViews, cluster: ClusterView) -> None:
        self._views = views
        self._cluster = cluster
        self._own = (cluster.node_id,)

    def of(self, topic: str, partitions: Iterable[int]) -> list[PartitionLeadership]:
        """The states at this moment, in the order of `partitions`."""
        epochs = self._views.leader_epochs(topic)
        leader_of, (own,) = self._views.leader_of, self._own
        states = []
        for number in partitions:
            epoch = epochs.get(number, EPOCH_UNKNOWN)
            leader = leader_of(TopicPartition(topic, number))
            if leader == own:
                states.append(PartitionLeadership(0, number, own, epoch, self._own, _NOBODY))
            else:
                states.append(self._elsewhere(number, leader, epoch))
        return states

    def _elsewhere(self, number: int, leader: int | None, epoch: int) -> PartitionLeadership:
        replicas = _NOBODY if leader is None else (leader,)
        if leader is not None and self._cluster.is_live(leader):
            return PartitionLeadership(0, number, leader, epoch, replicas, _NOBODY)
        error = KafkaError.LEADER_NOT_AVAILABLE
        return PartitionLeadership(error, number, NO_LEADER, epoch, replicas, replicas)
