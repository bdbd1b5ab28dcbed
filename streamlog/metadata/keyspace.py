"""A cluster's keys in the metadata store, and the tools that all parts of a session share."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.kvstore.interface import KVStore
from streamlog.metadata.backoff import RetryPolicy
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.metrics import MetadataMetrics
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random


@dataclass(frozen=True, slots=True)
class KeySpace:
    """The keys of one cluster in a KV store, and how requests for them are retried."""

    kv: KVStore
    prefix: bytes
    """All keys begin with it (`keys/space.py`)."""
    retry: RetryPolicy


@dataclass(frozen=True, slots=True)
class Tools:
    """Settings, time, randomness, CPU lane and metrics of one session."""

    config: MetadataConfig
    clock: Clock
    random: Random
    offload: Offload
    metrics: MetadataMetrics
