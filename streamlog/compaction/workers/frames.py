"""Frames between a node and its compactor process, over the child's stdin and stdout.

    offset  field    bytes  meaning (little endian)
    0       length   4      of the payload
    4       kind     1      Frame
    5       payload  -

The node sends SETTINGS once (JSON), then PLAN, JOB and BUSY (one byte, 0 or 1). The child answers
READY once the store is open, PLANNED to each PLAN and OUTCOME to each JOB, or ERROR (JSON: type,
message, fields). It sends ALIVE every few seconds until then. The child ends when its stdin ends,
so it never outlives its node.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from dataclasses import dataclass
from enum import IntEnum

from streamlog import errors
from streamlog.errors import Internal, StreamlogError
from streamlog.objectstore.store_config import StoreConfig

HEADER = struct.Struct("<IB")
PAYLOAD_BYTES_MAX = 1 << 28
ALIVE_INTERVAL_S = 5.0


class Frame(IntEnum):
    SETTINGS = 1
    JOB = 2
    BUSY = 3
    READY = 4
    OUTCOME = 5
    ERROR = 6
    PLAN = 7
    PLANNED = 8
    ALIVE = 9


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Holds no credentials: the child finds them in its environment, as the node did."""

    store_url: str
    store: StoreConfig
    memory_bytes: int
    rate_bytes_per_s: int
    nice: int
    spool_dir: str | None
    log_format: str = "text"
    log_level: str = "info"

    def encode(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> WorkerSettings:
        fields = json.loads(data)
        return cls(**{**fields, "store": StoreConfig(**fields["store"])})


def encode_frame(kind: Frame, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(payload), kind) + payload


def encode_error(error: StreamlogError) -> bytes:
    # Kinds that one module has for itself stay behind, like those of the store.
    kind = next(one for one in type(error).__mro__ if getattr(errors, one.__name__, None) is one)
    return json.dumps(
        {"type": kind.__name__, "message": error.message, "fields": error.fields}
    ).encode()


def decode_error(data: bytes) -> StreamlogError:
    """The error as it was raised in the other process, or its nearest kind in `errors`."""
    fields = json.loads(data)
    kind = getattr(errors, fields["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, StreamlogError)):
        return Internal(f"{fields['type']}: {fields['message']}")
    return kind(fields["message"], **fields["fields"])
