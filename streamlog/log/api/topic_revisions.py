"""Counts the changes of what clients are told of topics: settings, partitions, leaders, epochs.

Who keeps an answer about a topic asks here, without a look at its partitions, whether it is still
true. Nothing here is stored: all counts begin anew with the process.
"""

from __future__ import annotations

from collections import OrderedDict

FORMER_MAX = 10_000
"""Names of deleted topics whose epochs are remembered."""


class TopicRevisions:
    """`latest` rises with each change; `of(topic)` is what it was after the topic's last one.

    It also remembers the leader epoch of each partition that was open here. A log that was closed
    keeps its epoch, so that what clients are told never goes backwards. This holds over a topic's
    deletion, too: epochs of one that has the name later are unknown until they pass the deleted
    one's. Why: a librdkafka consumer takes lower ones for outdated, and reads nothing for ever.
    """

    def __init__(self) -> None:
        self.latest = 0
        self._of: dict[str, int] = {}
        self._epochs: dict[str, dict[int, int]] = {}
        self._former: OrderedDict[str, int] = OrderedDict()
        """Name of a deleted topic → the greatest of its epochs."""

    def of(self, topic: str) -> int:
        """0: nothing has changed since the process started, or there is no such topic."""
        return self._of.get(topic, 0)

    def leader_epochs(self, topic: str) -> dict[int, int]:
        """Partition → leader epoch, of those that were open here; not to be changed."""
        return self._epochs.get(topic, {})

    def changed(self, topic: str) -> None:
        self.latest += 1
        self._of[topic] = self.latest

    def opened(self, topic: str, partition: int, leader_epoch: int) -> None:
        if leader_epoch < self._former.get(topic, -1):
            return
        epochs = self._epochs.setdefault(topic, {})
        if leader_epoch > epochs.get(partition, -1):
            epochs[partition] = leader_epoch
            self.changed(topic)

    def removed(self, topic: str) -> None:
        """A topic that gets the name later is another one, with epochs of its own."""
        self.latest += 1
        self._of.pop(topic, None)
        epochs = self._epochs.pop(topic, None)
        if not epochs:
            return
        self._former[topic] = max(self._former.pop(topic, -1), *epochs.values())
        if len(self._former) > FORMER_MAX:
            self._former.popitem(last=False)
