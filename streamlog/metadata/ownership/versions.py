"""Checks the versions of stored values before anything is written: a newer release's stay as is."""

from __future__ import annotations

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.format.records import commit as commit_record
from streamlog.kvstore.interface import KVStore, prefix_end
from streamlog.metadata.keys import (
    checkpoint,
    counter,
    fence,
    head,
    id_block,
    lineage,
    node,
    recovery,
    transfer,
)

PAGE_KEYS = 128
VERSIONS = {
    b"c": ("a commit record", commit_record.VERSION),
    b"f": ("a fence", fence.VERSION),
    b"g": ("the metadata's lineage", lineage.VERSION),
    b"h": ("a head", head.VERSION),
    b"i": ("an id counter", id_block.VERSION),
    b"k": ("the checkpoint key", checkpoint.VERSION),
    b"m": ("a transfer record", transfer.VERSION),
    b"n": ("a node", node.VERSION),
    b"r": ("the metadata's recovery", recovery.VERSION),
    b"x": ("the compaction counter", counter.VERSION),
}
"""First letter of the keys → name and supported version, in the order of keys."""
KINDS = (commit_record.COMMIT, commit_record.COMPACTION)


async def check_versions(kv: KVStore, prefix: bytes) -> None:
    """Errors: UnsupportedVersion (names the key), Corrupt (an empty value), MetadataUnavailable."""
    for letter in VERSIONS:
        start, end = prefix + letter, prefix_end(prefix + letter)
        while True:
            page = await kv.range(start, end, limit=PAGE_KEYS)
            for entry in page.kvs:
                _check(entry.key, letter, entry.value)
            if not page.more:
                break
            start = page.kvs[-1].key + b"\0"


def _check(key: bytes, letter: bytes, value: bytes) -> None:
    what, supported = VERSIONS[letter]
    if not value:
        raise Corrupt(f"the metadata value of {what}, key {key!r}, is empty")
    version = value[0]
    if letter == b"c" and version == supported and len(value) > 1 and value[1] not in KINDS:
        what, version, supported = f"{what} of kind {value[1]}", value[1], max(KINDS)
    if version > supported:
        raise UnsupportedVersion(
            f"{what}, metadata key {key!r}, was written by a newer version of streamlog "
            f"({version}, this release reads {supported}); nothing was changed: use the newer "
            "release, or upgrade this node",
            found=version,
            supported=supported,
        )
