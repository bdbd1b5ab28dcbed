"""Quotas of clients over a clock that the test chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from streamlog.runtime.clock import Clock
from streamlog.server.limits.quotas.client_quotas import ClientQuotas
from streamlog.server.limits.quotas.limited_client import LimitedClient, QuotaWindows
from streamlog.server.metrics import ClientMetrics

SAMPLES, SAMPLE_S, WINDOW_S = 11, 1, 11
"""Kafka's defaults."""


class QuotaScene:
    def __init__(self, clock: Clock, *, client_ids_max: int = 10) -> None:
        self.registry = CollectorRegistry()
        metrics = ClientMetrics(self.registry, client_ids_max)
        self.quotas = ClientQuotas(QuotaWindows(clock, SAMPLES, SAMPLE_S), metrics)

    def limited(self, client_id: str) -> LimitedClient:
        limited = self.quotas.of(client_id)
        assert limited is not None
        return limited

    def throttled_s(self, client_id: str, quota: str) -> float:
        """What the metrics say."""
        name, labels = "streamlog_client_throttle_seconds_total", {"client_id": client_id}
        return self.registry.get_sample_value(name, {**labels, "quota": quota}) or 0.0


class StoredQuotasOfTest:
    """What is stored, by client id."""

    def __init__(self) -> None:
        self.configs: dict[str | None, Mapping[str, str]] = {}
        self.listener: Callable[[str | None], None] = lambda _: None

    def of(self, client_id: str | None) -> Mapping[str, str]:
        return self.configs.get(client_id, {})

    def client_ids(self) -> list[str | None]:
        return list(self.configs)

    def listen(self, listener: Callable[[str | None], None]) -> None:
        self.listener = listener

    def put(self, client_id: str | None, **configs: str) -> None:
        self.configs[client_id] = configs
        self.listener(client_id)
