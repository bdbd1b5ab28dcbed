"""What all logs of a process share: time, randomness, offloaded work, settings, metrics, and the
throttle of catch-up reads."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.log.api.config import LogConfig
from streamlog.log.api.metrics import LogMetrics
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.catch_up_throttle import NO_THROTTLE, ReadThrottle
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """`offload` None: record batches are decoded on the event loop."""

    clock: Clock
    random: Random
    config: LogConfig
    metrics: LogMetrics
    offload: Offload | None = None
    throttle: ReadThrottle = NO_THROTTLE
