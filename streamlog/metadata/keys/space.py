"""The prefix that all keys of a cluster share, and tenures inside keys."""

from __future__ import annotations

import re
import struct

from streamlog.errors import Corrupt, InvalidName, UnsupportedVersion
from streamlog.metadata.interface import Tenure

CLUSTER_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
TENURE = struct.Struct(">II")
U64 = struct.Struct(">Q")


def prefix_of(cluster_id: str) -> bytes:
    """Errors: InvalidName."""
    if CLUSTER_ID.fullmatch(cluster_id) is None:
        raise InvalidName(
            f"cluster id {cluster_id[:80]!r} is not 1 to 64 characters of a-z, 0-9, '.', '_', '-'"
        )
    return f"/sl/{cluster_id}/".encode()


def cluster_of(prefix: bytes) -> str:
    """The cluster id in a prefix of `prefix_of`."""
    return prefix[len("/sl/") : -1].decode()


def tenure_key(prefix: bytes, letter: bytes, tenure: Tenure) -> bytes:
    return prefix + letter + b"/" + TENURE.pack(*tenure)


def tenure_in(key: bytes, prefix: bytes) -> Tenure:
    """The tenure in a key of `tenure_key`. Errors: Corrupt."""
    try:
        return Tenure(*TENURE.unpack_from(key, len(prefix) + 2))
    except struct.error as error:
        raise Corrupt(f"metadata key {key!r} is too short for a tenure") from error


def number_in(key: bytes) -> int:
    """The number at the end of a record's, transfer record's or block's key. Errors: Corrupt."""
    if len(key) < U64.size:
        raise Corrupt(f"metadata key {key!r} is too short for a number")
    return int(U64.unpack_from(key, len(key) - U64.size)[0])


def unpack(layout: struct.Struct, version: int, value: bytes, what: str) -> tuple[int, ...]:
    """The fields after the version byte. Errors: Corrupt, UnsupportedVersion."""
    if not value:
        raise Corrupt(f"the metadata value of {what} is empty")
    if value[0] > version:
        raise UnsupportedVersion(
            f"{what} was written by a newer version of streamlog; upgrade this node",
            found=value[0],
            supported=version,
        )
    if value[0] != version or len(value) != layout.size:
        raise Corrupt(
            f"the metadata value of {what} is unreadable: version {value[0]}, {len(value)} bytes"
        )
    return tuple(layout.unpack(value)[1:])
