"""The server's own settings that change at run time, and what follows them.

The log layer follows its own (`log/broker`): retention, sizes, partitions of new topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from streamlog.runtime.logs import set_level
from streamlog.server.limits.requests import ActiveRequests
from streamlog.server.metrics import ServerMetrics
from streamlog.settings import Settings, dynamic
from streamlog.settings.values import parse
from streamlog.tiered.remote_log_manager import RemoteLogManager

log = logging.getLogger(__name__)

AUTO_CREATE = "auto.create.topics.enable"
LOG_LEVEL = "node.log_level"
REQUESTS_MAX = "limits.requests_max"
COPY_RATE = "remote.log.manager.copy.max.bytes.per.second"
FETCH_RATE = "remote.log.manager.fetch.max.bytes.per.second"


class RuntimeSettings:
    """`configs()`: what was set at run time and holds for this node; call `follow` on a change."""

    def __init__(self, settings: Settings, configs: Callable[[], Mapping[str, str]]) -> None:
        self._settings = settings
        self._configs = configs
        self._auto_create = bool(settings.broker.auto_create_topics_enable)
        self._has_level = False
        self._requests: tuple[ActiveRequests, ServerMetrics] | None = None
        self._tiers: RemoteLogManager | None = None

    def bound_requests(self, requests: ActiveRequests, metrics: ServerMetrics) -> None:
        """The bound of these follows from now on."""
        self._requests = requests, metrics

    def bound_tiers(self, tiers: RemoteLogManager) -> None:
        """Its quotas follow from now on."""
        self._tiers = tiers

    def auto_create(self) -> bool:
        """Whether a topic is created when a client asks for it, or sends records to it."""
        return self._auto_create

    def follow(self) -> None:
        """Puts what is set now into force."""
        configs, settings = self._configs(), self._settings
        self._auto_create = bool(
            _value(configs, AUTO_CREATE, settings.broker.auto_create_topics_enable)
        )
        if self._requests is not None:
            requests, metrics = self._requests
            requests.bound = _value(configs, REQUESTS_MAX, settings.limits.requests_max)
            metrics.requests_bound.set(requests.bound)
        if self._tiers is not None:
            broker = settings.broker
            self._tiers.set_quotas(
                _value(configs, COPY_RATE, broker.remote_log_manager_copy_max_bytes_per_second),
                _value(configs, FETCH_RATE, broker.remote_log_manager_fetch_max_bytes_per_second),
            )
        if LOG_LEVEL in configs or self._has_level:
            # A process that embeds a node keeps the level of its own logging until one is set.
            self._has_level = LOG_LEVEL in configs
            set_level(_value(configs, LOG_LEVEL, settings.node.log_level))


def _value(configs: Mapping[str, str], name: str, static: Any) -> Any:
    """The static value, too, where what is stored cannot be read: another version may have stored
    it."""
    if name not in configs:
        return static
    if not dynamic.is_readable(name, configs[name]):
        log.warning("broker setting %s is passed over: %.80r cannot be read", name, configs[name])
        return static
    knob = dynamic.setting_of(name).knob
    assert knob is not None
    return parse(knob, configs[name], "at run time")
