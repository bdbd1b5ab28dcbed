"""Quotas of clients, as the KV store has them: by client id, and for those without their own.

Namespace `_quota`, key `client/<client id>` for one, `clients` for all others. A record is that of
broker settings (`broker_record.py`), with the quotas under Kafka's names. Other kinds of owners,
such as users, would have keys of their own beside these.
"""

from __future__ import annotations

from collections.abc import Callable

from streamlog.log.broker.stored.stored_configs import Change, Configs, StoredConfigs
from streamlog.model.kv import KVClient

QUOTA_NAMESPACE = "_quota"
_OTHERS = b"clients"
_OF_ONE = b"client/"


def quota_name(client_id: str | None) -> bytes:
    """None: the clients that have no quotas of their own."""
    return _OTHERS if client_id is None else _OF_ONE + client_id.encode()


def _client_id(name: bytes) -> str:
    return name.removeprefix(_OF_ONE).decode(errors="replace")


class ClientConfigs:
    """Listeners are called with the client id, or None, after each change of its quotas."""

    def __init__(self, kv: KVClient) -> None:
        self._stored = StoredConfigs(kv, QUOTA_NAMESPACE, "quotas of clients", self._changed)
        self._listeners: list[Callable[[str | None], None]] = []
        self.load = self._stored.load
        self.follow = self._stored.follow
        self.alarms = self._stored.alarms

    def of(self, client_id: str | None) -> Configs:
        """What was set for one client id, or, None, for those without their own."""
        return self._stored.of(quota_name(client_id))

    def client_ids(self) -> list[str | None]:
        """Those for which something is set, None for all others first."""
        names = self._stored.names()
        default: list[str | None] = [None] if _OTHERS in names else []
        return default + [_client_id(name) for name in names if name.startswith(_OF_ONE)]

    def listen(self, listener: Callable[[str | None], None]) -> None:
        """Calls `listener` for each change from now on."""
        self._listeners.append(listener)

    async def alter(self, client_id: str | None, change: Change) -> None:
        """As StoredConfigs.alter."""
        await self._stored.alter(quota_name(client_id), change)

    def _changed(self, name: bytes) -> None:
        if name != _OTHERS and not name.startswith(_OF_ONE):
            return  # A newer version's.
        client_id = None if name == _OTHERS else _client_id(name)
        for listener in self._listeners:
            listener(client_id)
