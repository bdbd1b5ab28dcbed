"""Streams as their users see them: plain values and protocols, no behaviour.

Imports the ground. Used by everything above it, and by applications.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.runtime.exports import lazy_exports

if TYPE_CHECKING:
    from streamlog.model.batch import AppendContext as AppendContext
    from streamlog.model.batch import AppendResult as AppendResult
    from streamlog.model.batch import BatchAttributes as BatchAttributes
    from streamlog.model.batch import CloseStreamOptions as CloseStreamOptions
    from streamlog.model.batch import CreateStreamOptions as CreateStreamOptions
    from streamlog.model.batch import DeleteStreamOptions as DeleteStreamOptions
    from streamlog.model.batch import FetchContext as FetchContext
    from streamlog.model.batch import FetchResult as FetchResult
    from streamlog.model.batch import OpenStreamOptions as OpenStreamOptions
    from streamlog.model.batch import Priority as Priority
    from streamlog.model.batch import ReadMode as ReadMode
    from streamlog.model.batch import RecordBatch as RecordBatch
    from streamlog.model.batch import Reservation as Reservation
    from streamlog.model.batch import StoredBatch as StoredBatch
    from streamlog.model.batch import StreamDescription as StreamDescription
    from streamlog.model.batch import StreamState as StreamState
    from streamlog.model.batch import single as single
    from streamlog.model.kv import Key as Key
    from streamlog.model.kv import KeyValue as KeyValue
    from streamlog.model.kv import KVChange as KVChange
    from streamlog.model.kv import KVClient as KVClient
    from streamlog.model.kv import Value as Value
    from streamlog.model.stream import Stream as Stream
    from streamlog.model.stream import StreamClient as StreamClient

__all__ = [
    "AppendContext",
    "AppendResult",
    "BatchAttributes",
    "CloseStreamOptions",
    "CreateStreamOptions",
    "DeleteStreamOptions",
    "FetchContext",
    "FetchResult",
    "KVChange",
    "KVClient",
    "Key",
    "KeyValue",
    "OpenStreamOptions",
    "Priority",
    "ReadMode",
    "RecordBatch",
    "Reservation",
    "StoredBatch",
    "Stream",
    "StreamClient",
    "StreamDescription",
    "StreamState",
    "Value",
    "single",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "AppendContext": "streamlog.model.batch",
        "AppendResult": "streamlog.model.batch",
        "CloseStreamOptions": "streamlog.model.batch",
        "CreateStreamOptions": "streamlog.model.batch",
        "DeleteStreamOptions": "streamlog.model.batch",
        "FetchContext": "streamlog.model.batch",
        "FetchResult": "streamlog.model.batch",
        "OpenStreamOptions": "streamlog.model.batch",
        "RecordBatch": "streamlog.model.batch",
        "Reservation": "streamlog.model.batch",
        "StoredBatch": "streamlog.model.batch",
        "StreamDescription": "streamlog.model.batch",
        "BatchAttributes": "streamlog.model.batch",
        "Priority": "streamlog.model.batch",
        "ReadMode": "streamlog.model.batch",
        "StreamState": "streamlog.model.batch",
        "single": "streamlog.model.batch",
        "KVChange": "streamlog.model.kv",
        "KVClient": "streamlog.model.kv",
        "Key": "streamlog.model.kv",
        "KeyValue": "streamlog.model.kv",
        "Value": "streamlog.model.kv",
        "Stream": "streamlog.model.stream",
        "StreamClient": "streamlog.model.stream",
    },
)
