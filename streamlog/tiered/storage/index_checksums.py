"""What the plug-ins here remember of the indexes that they stored: the segment's custom metadata.

    version  u8    1
    count    u8    of indexes
    each     u8    kind: 0 OFFSET, 1 TIMESTAMP, 2 PRODUCER_SNAPSHOT, 3 TRANSACTION, 4 LEADER_EPOCH
             u32   size in bytes
             u32   CRC-32C
    crc      u32, little-endian: CRC-32C of all before it

1. Big-endian; 51 bytes for all five, of the 128 that KIP-405 gives a plug-in. Kafka's indexes have
   no checksums, and most changes of one leave its form sound.
2. An index that is not named was not stored, so that one that is gone is not taken for one that
   never was.
3. A segment without custom metadata, of an earlier release or of Kafka's class, is taken as it is.

Pure, but for the reads of a copy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import NamedTuple

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, ObjectNotFound
from streamlog.format.sealed import seal, unseal
from streamlog.log.api.wire import FieldReader, FieldWriter
from streamlog.runtime.buffers import Buffer
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata
from streamlog.tiered.api.storage_manager import IndexType, SegmentFile
from streamlog.tiered.storage.files import pieces
from streamlog.tiered.storage.names import FileKind

VERSION = 1
_NUMBERS = {
    IndexType.OFFSET: 0,
    IndexType.TIMESTAMP: 1,
    IndexType.PRODUCER_SNAPSHOT: 2,
    IndexType.TRANSACTION: 3,
    IndexType.LEADER_EPOCH: 4,
}
_KINDS = {number: kind for kind, number in _NUMBERS.items()}


class IndexChecksum(NamedTuple):
    size_bytes: int
    crc: int


_NOTHING = IndexChecksum(0, 0)


class IndexChecksums:
    """Of one copy, taken from the bytes as they are stored."""

    def __init__(self) -> None:
        self._found: dict[IndexType, IndexChecksum] = {}

    async def pieces(self, kind: FileKind, content: SegmentFile | bytes) -> AsyncIterator[Buffer]:
        """As `files.pieces`. A log is not counted: its batches have checksums of their own."""
        size_bytes = crc = 0
        async for piece in pieces(content):
            if kind is not None:
                size_bytes, crc = size_bytes + len(piece), crc32c(piece, crc)
            yield piece
        if kind is not None:
            self._found[kind] = IndexChecksum(size_bytes, crc)

    def custom_metadata(self) -> bytes:
        return encode_checksums(self._found)


def encode_checksums(checksums: Mapping[IndexType, IndexChecksum]) -> bytes:
    w = FieldWriter()
    w.u8(VERSION)
    w.u8(len(checksums))
    for kind, one in checksums.items():
        w.u8(_NUMBERS[kind])
        w.u32(one.size_bytes)
        w.u32(one.crc)
    return seal(bytes(w.data))


def decode_checksums(data: bytes, of: object) -> dict[IndexType, IndexChecksum]:
    """Errors: Corrupt, UnsupportedVersion."""
    subject = f"the custom metadata of the remote segment {of}"
    r = FieldReader(unseal(data, VERSION, subject), subject)
    r.check_version(VERSION)
    found: dict[IndexType, IndexChecksum] = {}
    for _ in range(r.u8()):
        number = r.u8()
        if number not in _KINDS:
            raise r.corrupt(f"names an index of kind {number}")
        found[_KINDS[number]] = IndexChecksum(r.u32(), r.u32())
    r.end()
    return found


def check_stored(metadata: RemoteLogSegmentMetadata, kind: IndexType, data: Buffer) -> None:
    """Whether the index is the one that was stored. Errors: Corrupt, UnsupportedVersion."""
    checksums = _checksums(metadata)
    if checksums is None:
        return
    stored = checksums.get(kind, _NOTHING)
    if len(data) != stored.size_bytes:
        raise _damaged(metadata, kind, f"has {len(data)} bytes, not {stored.size_bytes}")
    if crc32c(data) != stored.crc:
        raise _damaged(metadata, kind, "fails its CRC")


async def as_stored(
    metadata: RemoteLogSegmentMetadata, kind: IndexType, read: Awaitable[Buffer]
) -> Buffer:
    """What the read finds. Errors: Corrupt (also for an index of aborted transactions that was
    stored and is not there), UnsupportedVersion, those of the read."""
    try:
        data = await read
    except ObjectNotFound as error:
        # Of the other kinds there always is one: nobody takes them for empty.
        if kind is IndexType.TRANSACTION and kind in (_checksums(metadata) or {}):
            raise _damaged(metadata, kind, "was stored, and is gone") from error
        raise
    check_stored(metadata, kind, data)
    return data


def _checksums(
    metadata: RemoteLogSegmentMetadata,
) -> Mapping[IndexType, IndexChecksum] | None:
    if not metadata.custom_metadata:
        return None
    return decode_checksums(metadata.custom_metadata, metadata.remote_log_segment_id)


def _damaged(metadata: RemoteLogSegmentMetadata, kind: IndexType, fault: str) -> Corrupt:
    return Corrupt(
        f"the {kind.value} index of the remote segment {metadata.remote_log_segment_id} {fault}; "
        "put it back from a copy",
        object_key=str(metadata.remote_log_segment_id),
    )
