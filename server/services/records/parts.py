"""What produce and fetch need of the node beside their own arguments."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.coordinator.api import TransactionCoordinator
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.server.context import Authorize
from streamlog.server.metrics import ClientMetrics, ServerMetrics, TopicTraffic
from streamlog.server.services.ports import Logs
from streamlog.settings.limits import LimitsConfig


@dataclass(frozen=True, slots=True)
class RecordParts:
    """Parts of the services that carry records.

    `topics` and `clients` count those records, `metrics` the appends that failed.
    """

    logs: Logs
    coordinator: TransactionCoordinator
    clock: Clock
    authorize: Authorize
    limits: LimitsConfig
    topics: TopicTraffic
    clients: ClientMetrics
    metrics: ServerMetrics
    offload: Offload
