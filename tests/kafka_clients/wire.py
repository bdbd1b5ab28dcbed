"""Kafka's frames by hand: headers, API names, and which versions are flexible.

Apart from `streamlog.kafka.protocol`, so that a mistake there is not made twice. The bodies are
the generated messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

APIS = {
    0: "produce",
    1: "fetch",
    2: "list_offsets",
    3: "metadata",
    10: "find_coordinator",
    18: "api_versions",
    19: "create_topics",
    20: "delete_topics",
    21: "delete_records",
    22: "init_producer_id",
    23: "offset_for_leader_epoch",
    24: "add_partitions_to_txn",
    26: "end_txn",
    27: "write_txn_markers",
    32: "describe_configs",
    33: "alter_configs",
    35: "describe_log_dirs",
    37: "create_partitions",
    44: "incremental_alter_configs",
    46: "list_partition_reassignments",
    48: "describe_client_quotas",
    49: "alter_client_quotas",
    60: "describe_cluster",
    61: "describe_producers",
    65: "describe_transactions",
    66: "list_transactions",
    74: "list_config_resources",
    75: "describe_topic_partitions",
}
"""The APIs whose messages are known, by their key: the name of their modules."""
KEYS = {name: key for key, name in APIS.items()}

FLEXIBLE_FROM = {
    **{0: 9, 1: 12, 2: 6, 3: 9, 18: 3, 19: 5, 20: 4, 21: 2, 22: 2, 23: 4, 32: 4, 33: 2, 35: 2},
    **{37: 2, 44: 1, 46: 0, 48: 1, 49: 1, 60: 0, 61: 0, 74: 0, 75: 0},
    **{10: 3, 24: 3, 26: 3, 27: 1, 65: 0, 66: 0},
}
"""The first version of each API whose strings are compact and whose headers have tagged fields."""
API_VERSIONS = 18
API_VERSIONS_LAST = 4
"""The newest version that Kafka 4.1 knows; newer clients ask with newer ones first."""


class RequestHeader(NamedTuple):
    api: int
    version: int
    correlation_id: int


def request_header(frame: bytes | memoryview) -> RequestHeader:
    return RequestHeader(*struct.unpack_from(">hhi", frame))


def request_frame(
    api: int, version: int, correlation_id: int, client_id: str, message: object
) -> bytes:
    """The frame with its length in front."""
    name = client_id.encode()
    header = struct.pack(">hhih", api, version, correlation_id, len(name)) + name
    if version >= FLEXIBLE_FROM[api]:
        header += b"\0"
    pieces = _module(api, "request").encode(message, version)
    body = b"".join(bytes(piece) for piece in pieces)
    return struct.pack(">i", len(header) + len(body)) + header + body


def decode_response(api: int, version: int, frame: bytes | memoryview) -> Any:
    """The message in a frame without its length. Errors: AssertionError, where bytes are left."""
    at = 4
    if api == API_VERSIONS and version > API_VERSIONS_LAST:
        # A broker that does not know the version answers in the oldest one, with error 35.
        version = 0
    # Clients read this API's header before they know what the broker speaks.
    if version >= FLEXIBLE_FROM[api] and api != API_VERSIONS:
        at = _past_tags(frame, at)
    message, end = _module(api, "response").decode(memoryview(frame), at, version)
    assert end == len(frame), f"{len(frame) - end} bytes behind a {APIS[api]} v{version} response"
    return message


def error_codes(message: object) -> Iterator[int]:
    """Every error code in a message, however deep; 0 where there was no error."""
    if isinstance(message, list | tuple):
        for one in message:
            yield from error_codes(one)
    elif hasattr(type(message), "__slots__"):
        names: tuple[str, ...] = getattr(type(message), "__slots__", ())
        for name in names:
            value = getattr(message, name)
            if name == "error_code":
                yield value
            elif isinstance(value, list | tuple) or hasattr(type(value), "__slots__"):
                yield from error_codes(value)


def _past_tags(frame: bytes | memoryview, at: int) -> int:
    count, at = _varint(frame, at)
    for _ in range(count):
        _, at = _varint(frame, at)
        size, at = _varint(frame, at)
        at += size
    return at


def _varint(frame: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


@cache
def _module(api: int, kind: str) -> Any:
    return import_module(f"streamlog.kafka.messages.{APIS[api]}_{kind}")
