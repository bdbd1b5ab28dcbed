"""The errors that codecs raise for stored bytes."""

from __future__ import annotations

from streamlog.errors import Corrupt, UnsupportedVersion


def corrupt(what: str, object_key: str, start: int, end: int) -> Corrupt:
    """Bytes start (inclusive) to end (exclusive) of an object or file are damaged."""
    return Corrupt(
        f"{object_key}: bytes {start} to {end} are damaged ({what}); "
        "restore them from a copy, or run fsck to see what is affected",
        object_key=object_key,
        start=start,
        end=end,
    )


def unsupported(object_key: str, found: int, supported: int) -> UnsupportedVersion:
    """The bytes are undamaged, but have a format version that this release cannot read."""
    return UnsupportedVersion(
        f"{object_key} has format version {found}, this release reads up to {supported}; "
        "upgrade streamlog",
        object_key=object_key,
        found=found,
        supported=supported,
    )
