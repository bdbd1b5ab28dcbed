"""The bytes of object files never change.

To write files for a new version: `python tests/format/test_object_golden.py` makes those missing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from streamlog.format.object.block import decode_block
from streamlog.format.object.build import build_object
from streamlog.format.object.footer import decode_footer
from streamlog.format.object.index import decode_index
from streamlog.format.rows import Placement, RangeRow
from tests.format.object_samples import GOLDEN_ENTRIES, IDENTITY, as_tuple, entry

GOLDEN = Path(__file__).parent.parent / "golden"
FILES = {
    "object_v1_plain.bin": "none",
    "object_v1_zstd.bin": "zstd",
}


STAGED = "object_v2_staged.bin"


def build_staged() -> bytes:
    entries = [
        entry(1, 0, b"first", attributes=b"attr-1", timestamp_ms=1_700_000_000_000, epoch=0),
        entry(1, 1, (b"in ", b"pieces"), record_count=9, epoch=0),
        entry(5, 0, b"x" * 300, record_count=1000, epoch=0),
    ]
    return b"".join(build_object(IDENTITY, entries, block_target_bytes=64, is_staged=True).parts)


def build(compression: str) -> bytes:
    return b"".join(
        build_object(IDENTITY, GOLDEN_ENTRIES, compression=compression, block_target_bytes=64).parts
    )


@pytest.mark.parametrize("name", FILES)
def test_golden_file_is_read(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    footer = decode_footer(data, size_bytes=len(data), object_key=name)
    assert footer.identity == IDENTITY
    region = data[footer.row.index_position :][: footer.row.index_length]
    batches = [
        as_tuple(batch)
        for block in decode_index(region, footer.row).blocks()
        for batch in decode_block(data[block.position :][: block.length], block, object_key=name)
    ]
    assert batches == [as_tuple(entry) for entry in GOLDEN_ENTRIES]


def test_plain_golden_bytes_are_written() -> None:
    """Without zstd, whose output may change with its release."""
    assert build("none") == (GOLDEN / "object_v1_plain.bin").read_bytes()


def test_staged_golden_file_is_written_and_read() -> None:
    data = (GOLDEN / STAGED).read_bytes()
    assert build_staged() == data
    footer = decode_footer(data, size_bytes=len(data), object_key=STAGED)
    assert footer.is_staged
    assert footer.ranges == [RangeRow(1, 0, 0, 10), RangeRow(5, 0, 0, 1000)]
    region = data[footer.row.index_position :][: footer.row.index_length]
    row = replace(footer.row, placements=(Placement(1, 70, 3), Placement(5, 9, 3)))
    placed = [
        (block.stream_id, *as_tuple(batch)[:2])
        for block in decode_index(region, row).blocks()
        for batch in decode_block(data[block.position :][: block.length], block, object_key=STAGED)
    ]
    assert placed == [(1, 70, 1), (1, 71, 9), (5, 9, 1000)]


if __name__ == "__main__":
    if not (GOLDEN / STAGED).exists():
        (GOLDEN / STAGED).write_bytes(build_staged())
    for name, compression in FILES.items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(build(compression))
