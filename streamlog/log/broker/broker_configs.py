"""Broker settings of all nodes and of single ones, as the KV store has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamlog.log.broker.broker_record import CONFIG_NAMESPACE, config_key
from streamlog.log.broker.stored.stored_configs import Change, Configs, StoredConfigs
from streamlog.model.kv import KVClient

_OF_ONE = b"broker/"


class BrokerConfigs:
    """`on_change()` is called after each change of what this node has to follow."""

    def __init__(self, kv: KVClient, node_id: int, on_change: Callable[[], None]) -> None:
        self.node_id = node_id
        self._stored = StoredConfigs(
            kv, CONFIG_NAMESPACE, "broker settings", lambda _name: on_change()
        )
        self.load = self._stored.load
        self.follow = self._stored.follow
        self.alarms = self._stored.alarms

    def of(self, node_id: int | None) -> Configs:
        """What was set for one node, or, None, for all."""
        return self._stored.of(config_key(node_id).name)

    def in_force(self) -> dict[str, str]:
        """What was set for all nodes, with what was set for this one over it."""
        return {**self.of(None), **self.of(self.node_id)}

    def unknown(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the settings that may be set for this node, in a record that was never read."""
        own = config_key(self.node_id).name
        if self._stored.is_unknown(own):
            return frozenset(names)
        if self._stored.is_unknown(config_key(None).name):
            return frozenset(names) - self._stored.of(own).keys()
        return frozenset()

    def nodes(self) -> list[int]:
        """The nodes that have settings of their own."""
        names = (name.removeprefix(_OF_ONE) for name in self._stored.names() if _OF_ONE in name)
        return sorted(int(name) for name in names if name.isdigit())

    async def alter(self, node_id: int | None, change: Change) -> None:
        """As StoredConfigs.alter."""
        await self._stored.alter(config_key(node_id).name, change)
