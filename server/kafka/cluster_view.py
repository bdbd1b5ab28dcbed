"""The nodes of the cluster as Kafka's clients see them: ids, addresses, racks.

A client is told the addresses of the listener that it connected to, because those are the ones that
it can reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.model.partition import TopicPartition
from streamlog.server.composition import Services
from streamlog.server.kafka.call import KafkaCall


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """A live node, and where the clients of one listener reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class ClusterView:
    """Today a cluster has one node: this one, which is its controller, too."""

    def __init__(self, services: Services) -> None:
        self.cluster_id = services.cluster_id
        self.node_id = services.node_id
        self._rack = services.rack
        self._views = services.topic_views

    def nodes(self, call: KafkaCall) -> list[KafkaNode]:
        """All live nodes, by id, with the addresses of the call's listener."""
        host, port = call.advertised
        return [KafkaNode(self.node_id, host, port, self._rack)]

    def is_live(self, node_id: int) -> bool:
        """Whether `nodes` has it."""
        return node_id == self.node_id

    def leader_of(self, partition: TopicPartition) -> int | None:
        """None: the partition has no leader now."""
        return self._views.leader_of(partition)
