"""Store URL → open ObjectStore."""

from __future__ import annotations

from streamlog.errors import Internal
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.local import LocalObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.objectstore.url import LocalUrl, MemoryUrl, StoreUrl, check_available
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload


async def open_store(url: StoreUrl, offload: Offload, clock: Clock) -> ObjectStore:
    """Errors: Invalid for a kind that comes later; StoreUnavailable, DiskFull."""
    check_available(url)
    match url:
        case MemoryUrl():
            return MemoryObjectStore(clock)
        case LocalUrl(path):
            return await LocalObjectStore.open(path, offload, clock)
        case _:
            raise Internal(f"nothing opens {url}")
