"""A pin (key `p/pin`): a reader asks, on a lease, to keep objects that were live at a revision.

    off  size  field
    0    1     version = 1
    1    8     revision: objects that were live at it or later are kept
    9    -     owner, UTF-8, for people

Changes: immutable; deleted with its lease.
Absent: no pin. The collector reads the pins after it has found an object dead.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from streamlog.errors import Corrupt, UnsupportedVersion

VERSION = 1
HEADER = struct.Struct("<BQ")


class Pin(NamedTuple):
    revision: int
    owner: str


def prefix_of_pins(prefix: bytes) -> bytes:
    return prefix + b"p/"


def key(prefix: bytes, name: bytes) -> bytes:
    return prefix_of_pins(prefix) + name


def encode(pin: Pin) -> bytes:
    return HEADER.pack(VERSION, pin.revision) + pin.owner.encode()


def decode(value: bytes) -> Pin:
    """Errors: Corrupt, UnsupportedVersion."""
    if len(value) < HEADER.size:
        raise Corrupt("the metadata value of a pin is too short")
    version, revision = HEADER.unpack_from(value)
    if version > VERSION:
        raise UnsupportedVersion(
            "a pin was set by a newer version of streamlog; upgrade this node",
            found=version,
            supported=VERSION,
        )
    if version != VERSION:
        raise Corrupt(f"a pin has the version {version}, which never was")
    try:
        return Pin(revision, value[HEADER.size :].decode())
    except UnicodeDecodeError as error:
        raise Corrupt("the owner of a pin is not UTF-8") from error
