"""Who leads a partition: the one place to ask, and the one place where leading begins and ends.

A log is opened on the node that leads its partition alone, so asking for a partition's state never
makes a node its leader. Today a cluster has one node, which leads every partition.
"""

from __future__ import annotations

from typing import Protocol

from streamlog.errors import NotLeader
from streamlog.model.partition import TopicPartition


class LeadershipListener(Protocol):
    """A manager that holds something for the partitions that this node leads."""

    async def on_leadership_change(
        self, partition: TopicPartition, leader_node: int | None
    ) -> None:
        """Returns when the manager holds nothing of a partition that another node leads now."""
        ...


class Leadership:
    """The leader of each partition; it does not elect one."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self._elsewhere: dict[TopicPartition, int | None] = {}
        """Partitions that this node does not lead → their leaders; None while there is none."""
        self._listeners: list[LeadershipListener] = []

    def leader_of(self, partition: TopicPartition) -> int | None:
        """The leader's node id; None while the partition has no leader."""
        return self._elsewhere.get(partition, self.node_id)

    def is_led_here(self, partition: TopicPartition) -> bool:
        return partition not in self._elsewhere

    def check_led_here(self, partition: TopicPartition) -> None:
        """Errors: NotLeader."""
        if partition not in self._elsewhere:
            return
        leader = self._elsewhere[partition]
        if leader is None:
            raise NotLeader(f"{partition} has no leader now; refresh the metadata and retry")
        raise NotLeader(
            f"{partition} is led by node {leader}; refresh the metadata and ask that node",
            leader_node=leader,
        )

    def add_listener(self, listener: LeadershipListener) -> None:
        self._listeners.append(listener)

    async def assign(self, partition: TopicPartition, leader_node: int | None) -> None:
        """Makes the node the leader. When this returns, this node has ended leading it, if it did.

        Nothing is opened for a partition that this node leads from now on: its first use does.
        After an error, or when the caller was cancelled, the same call again waits for the end.
        Errors: those of giving the partition up.
        """
        if leader_node == self.node_id:
            self._elsewhere.pop(partition, None)
        else:
            self._elsewhere[partition] = leader_node
        for listener in self._listeners:
            await listener.on_leadership_change(partition, leader_node)
