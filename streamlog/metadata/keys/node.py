"""The node key (`n/node`): a node's current tenure and address.

    off  size  field
    0    1     version = 1
    1    4     current node epoch
    5    1     WAL mode: 1 object, 2 disk
    6    4     window W
    10   2     length of the address, then the address (UTF-8)
    -    2     length of the rack, then the rack (UTF-8)

Changes: its own node compares and replaces it at registration: no node epoch is used twice.
Absent: the node never registered.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from streamlog.errors import Corrupt, UnsupportedVersion

VERSION = 1
HEADER = struct.Struct("<BIBI")
LENGTH = struct.Struct("<H")
OBJECT, DISK = 1, 2


@dataclass(frozen=True, slots=True)
class NodeEntry:
    node_epoch: int
    has_disk_wal: bool
    window: int
    address: str = ""
    rack: str = ""


def key(prefix: bytes, node_id: int) -> bytes:
    return prefix + b"n/" + struct.pack(">I", node_id)


def encode(node: NodeEntry) -> bytes:
    parts = [
        HEADER.pack(VERSION, node.node_epoch, DISK if node.has_disk_wal else OBJECT, node.window)
    ]
    for text in (node.address.encode(), node.rack.encode()):
        parts += LENGTH.pack(len(text)), text
    return b"".join(parts)


def decode(value: bytes) -> NodeEntry:
    """Errors: Corrupt, UnsupportedVersion."""
    if value and value[0] > VERSION:
        raise UnsupportedVersion(
            "a node was registered by a newer version of streamlog; upgrade this node",
            found=value[0],
            supported=VERSION,
        )
    try:
        version, node_epoch, wal, window = HEADER.unpack_from(value)
        position, texts = HEADER.size, []
        for _ in range(2):
            (length,) = LENGTH.unpack_from(value, position)
            position += LENGTH.size
            texts.append(value[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError) as error:
        raise Corrupt("the metadata value of a node is unreadable") from error
    if version != VERSION or wal not in (OBJECT, DISK) or position != len(value):
        raise Corrupt("the metadata value of a node holds impossible values")
    return NodeEntry(node_epoch, wal == DISK, window, *texts)
