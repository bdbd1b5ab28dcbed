"""Store URL → open ObjectStore."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from streamlog.errors import Invalid
from streamlog.objectstore.hedging.store import HedgedStore
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.objectstore.s3.requests import S3Requests
from streamlog.objectstore.s3.store import S3ObjectStore
from streamlog.objectstore.store_config import StoreConfig
from streamlog.objectstore.store_metrics import StoreMetrics
from streamlog.objectstore.url import LocalUrl, MemoryUrl, S3Url, StoreUrl
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random, SystemRandom


async def open_store(
    url: StoreUrl,
    offload: Offload,
    clock: Clock,
    random: Random | None = None,
    *,
    config: StoreConfig | None = None,
    registry: CollectorRegistry | None = None,
) -> ObjectStore:
    """What is not given: the system's randomness, default settings, a registry of its own.

    Errors: Invalid, Unauthorized, StoreUnavailable, DiskFull; each says what to do.
    """
    config = config or StoreConfig()
    match url:
        case MemoryUrl():
            return MemoryObjectStore(clock)
        case LocalUrl(path):
            return await LocalObjectStore.open(path, offload, clock)
        case S3Url():
            metrics = StoreMetrics(registry or CollectorRegistry(), clock)
            store = await open_s3(url, offload, clock, random or SystemRandom(), config, metrics)
            return HedgedStore(store, config, clock, metrics)


def absent_folder(url: StoreUrl) -> str | None:
    """The folder that `open_store` would make; None where it opens what is there."""
    if not isinstance(url, LocalUrl):
        return None
    try:
        Path(url.path).stat()
    except FileNotFoundError:
        return url.path
    except OSError:
        # `open_store` tells why the folder cannot be read.
        return None
    return None


async def open_s3(
    url: S3Url,
    offload: Offload,
    clock: Clock,
    random: Random,
    config: StoreConfig,
    metrics: StoreMetrics,
) -> S3ObjectStore:
    """Checked by one request. Errors: Invalid, Unauthorized, StoreUnavailable."""
    requests = await _requests(url, offload, config, metrics)
    store = S3ObjectStore(url, requests, config, clock, random, metrics)
    try:
        await store.check()
    except BaseException:
        await store.close()
        raise
    return store


async def _requests(
    url: S3Url, offload: Offload, config: StoreConfig, metrics: StoreMetrics
) -> S3Requests:
    # The clients are imported here: a node on local files starts without their 0.3 s.
    if url.client == "obstore":
        try:
            from streamlog.objectstore.s3.obstore_requests import ObstoreRequests
        except ModuleNotFoundError as error:
            raise Invalid(
                "client=obstore needs the package obstore: install streamlog-engine[obstore]"
            ) from error
        return await ObstoreRequests.open(url, offload, config, metrics)
    from streamlog.objectstore.s3.boto3_requests import Boto3Requests

    return await Boto3Requests.open(url, offload, config, metrics)
