"""What the metadata remembers of a node's log folder: which one it is, and how new.

Namespace `_log_folder`, key: the node's id. Value, big-endian: version u8 (1), directory id (16
bytes, that of meta.properties), stamp u64. The folder has the stamp, too, as text in `STAMP`. Both
rise with each start, the folder's first. So a folder that was lost and made anew, another's, and an
older copy of the same one are told from the one that the node used last.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from streamlog.errors import Corrupt
from streamlog.log.api.wire import FieldReader, FieldWriter
from streamlog.model.kv import Key

VERSION = 1
NAMESPACE = "_log_folder"
STAMP = "streamlog.stamp"
STAMP_MAX = (1 << 63) - 1


class FolderRecord(NamedTuple):
    directory_id: UUID
    stamp: int


def record_key(node_id: int) -> Key:
    return Key(str(node_id).encode(), NAMESPACE)


def encode_record(record: FolderRecord) -> bytes:
    w = FieldWriter()
    w.u8(VERSION)
    w.raw(record.directory_id.bytes)
    w.u64(record.stamp)
    return bytes(w.data)


def decode_record(data: bytes) -> FolderRecord:
    """Errors: Corrupt, UnsupportedVersion."""
    r = FieldReader(data, "the record of the node's log folder")
    r.check_version(VERSION)
    record = FolderRecord(UUID(bytes=r.raw(16)), r.u64())
    r.end()
    return record


def encode_stamp(stamp: int) -> bytes:
    return f"{stamp}\n".encode()


def decode_stamp(data: bytes) -> int:
    """Errors: Corrupt."""
    text = data.decode("ascii", "replace").removesuffix("\n")
    if not text.isdecimal() or int(text) > STAMP_MAX:
        raise Corrupt(f"{STAMP} holds {text[:40]!r} instead of a number")
    return int(text)


def doubt_of(known: FolderRecord | None, found: FolderRecord, folder: str) -> str | None:
    """Why the folder is not the one that the node used last; None: it is."""
    if known is None:
        return None
    if known.directory_id != found.directory_id:
        return (
            f"the log folder {folder} is another one (directory.id {found.directory_id}) than the "
            f"node used last ({known.directory_id}): it was lost and made anew, or --log-dir names "
            "another folder"
        )
    if known.stamp > found.stamp:
        return (
            f"the log folder {folder} is an older copy: the node has started "
            f"{known.stamp - found.stamp} times on a newer one"
        )
    return None
