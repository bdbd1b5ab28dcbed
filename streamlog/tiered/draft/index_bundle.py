"""All indexes of a segment in one record: the draft's storage keeps logs alone.

The bundle is the value of the only record of a batch, at the segment's base offset, which is stored
as a segment of a partition beside the data's. Big-endian.

    version  u8    1
    count    u8    of indexes
    each     text  kind (IndexType's value), then u32 and as many bytes

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.codec.batch import placed
from streamlog.codec.records import encode_values, iterate
from streamlog.errors import Corrupt, CorruptMessage, InvalidRecord
from streamlog.log.api.wire import FieldReader, FieldWriter
from streamlog.runtime.buffers import Buffer
from streamlog.tiered.api.storage_manager import IndexType

VERSION = 1


def encode_bundle(indexes: Mapping[IndexType, Buffer]) -> bytes:
    w = FieldWriter()
    w.u8(VERSION)
    w.u8(len(indexes))
    for kind, data in indexes.items():
        w.text(kind.value)
        w.u32(len(data))
        w.raw(data)
    return bytes(w.data)


def decode_bundle(data: Buffer, of: object) -> dict[IndexType, bytes]:
    """Errors: Corrupt, UnsupportedVersion."""
    r = FieldReader(data, f"the indexes of {of}")
    r.check_version(VERSION)
    found: dict[IndexType, bytes] = {}
    for _ in range(r.u8()):
        name = r.text()
        try:
            kind = IndexType(name)
        except ValueError:
            raise r.corrupt(f"has an index {name}") from None
        found[kind] = r.raw(r.u32())
    r.end()
    return found


def bundle_batch(bundle: bytes, base_offset: int, timestamp_ms: int) -> bytes:
    """A batch of one record."""
    batch = encode_values([bundle], timestamp_ms=timestamp_ms).data
    return b"".join(placed(memoryview(batch), base_offset, 0))


def bundle_of(batch: Buffer, of: object) -> Buffer:
    """The value of the batch's record. Errors: Corrupt."""
    try:
        values = [value for _, _, _, value, _ in iterate(batch)]
    except (CorruptMessage, InvalidRecord) as error:
        raise Corrupt(f"the indexes of {of} are damaged: {error}") from error
    if len(values) != 1 or values[0] is None:
        raise Corrupt(f"the indexes of {of} are {len(values)} records, not one")
    return values[0]
