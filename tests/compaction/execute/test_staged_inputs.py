"""Compaction of objects that were staged: what a spec says of them, and what comes out."""

from __future__ import annotations

from dataclasses import replace

from streamlog.codec.batch import scan
from streamlog.codec.crc import crc32c_parts
from streamlog.codec.records import BatchBuilder
from streamlog.compaction.execute.builder import OutputBuilder
from streamlog.compaction.execute.spool import MemorySpool
from streamlog.compaction.plan.spec import (
    CompactionSpec,
    OutputKind,
    SpecInput,
    SpecOutput,
    decode_spec,
    encode_spec,
)
from streamlog.compaction.plan.stats import read_stats
from streamlog.format.entry import StreamEntry
from streamlog.format.object.block import decode_block
from streamlog.format.object.build import build_object
from streamlog.format.object.footer import ObjectIdentity
from streamlog.format.object.index import decode_index
from streamlog.format.rows import Placement, RangeRow
from streamlog.metadata.compaction_interface import CompactionPoint

IDENTITY = ObjectIdentity("c", 1, 1, 77)
PLACES = (Placement(3, 1000, 5, 9), Placement(4, 1 << 40, 2))


def _entry(stream_id: int, base: int, payload: bytes) -> StreamEntry:
    return StreamEntry(stream_id, 0, base, 2, 5, (payload,), b"facts", crc32c_parts((payload,)))


def _payload() -> bytes:
    builder = BatchBuilder(1000)
    builder.extend([b"a" * 100, b"b" * 100], timestamp_ms=5)
    return bytes(builder.build())


def test_rows_of_an_attached_object_are_those_of_its_streams() -> None:
    entries = [_entry(3, 0, _payload()), _entry(3, 2, _payload()), _entry(4, 0, b"opaque")]
    built = build_object(IDENTITY, entries, is_staged=True)
    data = b"".join(built.parts)
    row = replace(built.row, placements=PLACES)
    stats = read_stats(row, data[row.index_position :], "k")
    assert list(stats.rows) == [
        RangeRow(3, 5, 1000, 1004),
        RangeRow(4, 2, 1 << 40, (1 << 40) + 2),
    ]
    assert list(stats.bytes_of(stats.rows)) == [
        b.length for b in decode_index(data[row.index_position :][: row.index_length], row).blocks()
    ]
    output = SpecOutput(OutputKind.STREAM_SET, stats.rows, 500)
    spec = CompactionSpec(CompactionPoint(3, 9), [SpecInput(row, stats.rows)], [output])
    assert decode_spec(encode_spec(spec)) == spec


def test_attached_blocks_are_never_copied_as_they_are() -> None:
    """Though they are large enough: their offsets count from 0, and batches have none."""
    built = build_object(IDENTITY, [_entry(3, 0, _payload())], is_staged=True)
    data = b"".join(built.parts)
    row = replace(built.row, placements=PLACES[:1])
    (block,) = decode_index(data[row.index_position :][: row.index_length], row).blocks()
    spool = MemorySpool()
    identity = ObjectIdentity("c", 2, 1, 78)
    builder = OutputBuilder(identity, [RangeRow(3, 5, 1000, 1002)], 10, spool)  # type: ignore[arg-type]
    builder.begin(3, 1000)
    builder.add(block, data[block.position :][: block.length], 1002, 5, "k")
    builder.finish_part(1002, "k")
    made = builder.finish()
    out = b"".join(spool.content())
    (copied,) = decode_index(out[made.index_position :][: made.index_length], made).blocks()
    (batch,) = decode_block(out[copied.position :][: copied.length], copied, object_key="k")
    (scanned,) = scan(batch.parts[0])
    assert (scanned.header.base_offset, scanned.header.leader_epoch) == (1000, 9)
    assert batch.base_offset == 1000
