"""`streamlog.open`: the one place where concrete parts are built and connected.

    plan      what to open, decided before anything is touched
    stores    the metadata store, the object store, and the cluster id that both share
    wal       the write-ahead log, with the lock of its folder
    progress  the checks and probes behind a node's alarms
    engine    `OpenEngine`: the running engine with its services, and how it closes
    opening   `open`: all of it, in order

Imports every layer below. Called by server, commands, Spark jobs and users of the library.
"""

from streamlog.wal.config import WalMode
from streamlog.wiring.engine import EngineStatus, OpenEngine
from streamlog.wiring.opening import open
from streamlog.wiring.plan import Components
from streamlog.wiring.stores import (
    IfAbsent,
    check_is_there,
    is_shared,
    open_metadata_store,
    open_object_store,
)
from streamlog.wiring.wal import WAL_LOCK_NAME, lock_paths

__all__ = [
    "WAL_LOCK_NAME",
    "Components",
    "EngineStatus",
    "IfAbsent",
    "OpenEngine",
    "WalMode",
    "check_is_there",
    "is_shared",
    "lock_paths",
    "open",
    "open_metadata_store",
    "open_object_store",
]
