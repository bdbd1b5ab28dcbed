"""The quotas in force on a node, by client id; they follow what is stored at once.

A client id has its own values, and for each that it has not the default's. Where neither is set, a
request costs one look-up here and nothing else.

Clients choose their ids, so those that only the default bounds are bounded in number: the idle ones
are forgotten, which changes nothing for them, and above `CLIENTS_MAX` that are not idle all further
ones share one quota.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from streamlog.server.limits.quotas.limited_client import LimitedClient, QuotaWindows
from streamlog.server.limits.quotas.quota_values import NO_QUOTAS, QuotaValues, values_of
from streamlog.server.metrics import OTHER_CLIENT_IDS, ClientMetrics

log = logging.getLogger(__name__)

CLIENTS_MAX = 10_000


class StoredQuotas(Protocol):
    """What was set, by client id; None: for clients without their own."""

    def of(self, client_id: str | None) -> Mapping[str, str]: ...

    def client_ids(self) -> list[str | None]: ...

    def listen(self, listener: Callable[[str | None], None]) -> None: ...


class ClientQuotas:
    def __init__(self, windows: QuotaWindows, metrics: ClientMetrics) -> None:
        self.windows = windows
        self._metrics = metrics
        self._default = NO_QUOTAS
        self._has_default = False
        self._own: dict[str, QuotaValues] = {}
        self._limited: dict[str, LimitedClient] = {}
        self._others: LimitedClient | None = None
        """All client ids above the bound."""
        self._looked_at = float("-inf")
        """When idle clients were last looked for."""

    def of(self, client_id: str) -> LimitedClient | None:
        """The client's quotas; None: it has none, and nothing is measured."""
        limited = self._limited.get(client_id)
        if limited is None and self._has_default:
            return self._new(client_id)
        return limited

    def follow(self, stored: StoredQuotas) -> None:
        """Puts what is stored into force, now and whenever it changes."""

        def changed(client_id: str | None) -> None:
            values, passed_over = values_of(stored.of(client_id))
            for reason in passed_over:
                log.warning("a stored quota is passed over: %s", reason)
            self.set(client_id, values)

        stored.listen(changed)
        for client_id in stored.client_ids():
            changed(client_id)

    def set(self, client_id: str | None, values: QuotaValues) -> None:
        """Values of one client id, or, None, of those without their own; what they used stays."""
        if client_id is None:
            self._default, self._has_default = values, bool(values)
            for each, limited in list(self._limited.items()):
                self._apply(each, limited)
            if self._others is not None:
                self._others.values = values
            return
        if values:
            self._own[client_id] = values
        else:
            self._own.pop(client_id, None)
        known = self._limited.get(client_id)
        if known is not None:
            self._apply(client_id, known)
        elif values:
            self._limited[client_id] = self._made(client_id)

    def _apply(self, client_id: str, limited: LimitedClient) -> None:
        limited.values = self._values_of(client_id)
        if not limited.values:
            del self._limited[client_id]

    def _values_of(self, client_id: str) -> QuotaValues:
        return self._own.get(client_id, NO_QUOTAS).over(self._default)

    def _made(self, client_id: str) -> LimitedClient:
        values = self._values_of(client_id)
        return LimitedClient(client_id, values, self.windows, self._metrics)

    def _new(self, client_id: str) -> LimitedClient:
        """A client that only the default bounds."""
        if len(self._limited) - len(self._own) >= CLIENTS_MAX:
            self._forget_idle()
            if len(self._limited) - len(self._own) >= CLIENTS_MAX:
                if self._others is None:
                    self._others = self._made(OTHER_CLIENT_IDS)
                    self._others.values = self._default
                return self._others
        limited = self._limited[client_id] = self._made(client_id)
        return limited

    def _forget_idle(self) -> None:
        """Looks once in a sample at most: thousands of new ids would make each request look."""
        now = self.windows.clock.monotonic()
        if now - self._looked_at < self.windows.sample_s:
            return
        self._looked_at = now
        idle = [
            client_id
            for client_id, limited in self._limited.items()
            if client_id not in self._own and limited.is_idle()
        ]
        for client_id in idle:
            del self._limited[client_id]
