"""What all listeners of a node share, so that one more changes neither services nor bounds."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random
from streamlog.server.limits.in_flight import Budgets
from streamlog.server.limits.pipeline import Drain
from streamlog.server.limits.quotas.client_quotas import ClientQuotas
from streamlog.server.limits.requests import ActiveRequests
from streamlog.server.metrics import ServerMetrics
from streamlog.settings.limits import LimitsConfig


@dataclass(frozen=True, slots=True)
class ListenerResources:
    """Bounds, counters and the drain, made once for each node.

    `requests` bounds requests under way, `quotas` what each client uses, `budgets` the bytes of
    each connection, and `drain` ends open streams when the node stops. Connections are bounded by
    each listener for itself, by `limits.connections_max` (`limits/connections.py`): health and
    metrics can be read of a node that has all the clients it takes.
    """

    limits: LimitsConfig
    metrics: ServerMetrics
    requests: ActiveRequests
    quotas: ClientQuotas
    budgets: Budgets
    drain: Drain
    clock: Clock
    random: Random
    offload: Offload
