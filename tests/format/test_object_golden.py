"""The bytes of object file version 1 never change.

To write files for a new version: `python tests/format/test_object_golden.py` makes those missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from object_samples import GOLDEN_ENTRIES, IDENTITY, as_tuple

from streamlog.format.object_block import decode_block
from streamlog.format.object_build import build_object
from streamlog.format.object_footer import decode_footer
from streamlog.format.object_index import decode_index

GOLDEN = Path(__file__).parent.parent / "golden"
FILES = {
    "object_v1_plain.bin": "none",
    "object_v1_zstd.bin": "zstd",
}


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
    found = [
        as_tuple(batch)
        for block in decode_index(region, footer.row).blocks()
        for batch in decode_block(data[block.position :][: block.length], block, object_key=name)
    ]
    assert found == [as_tuple(entry) for entry in GOLDEN_ENTRIES]


def test_plain_golden_bytes_are_written() -> None:
    """Not asked of zstd, whose output may change with its release."""
    assert build("none") == (GOLDEN / "object_v1_plain.bin").read_bytes()


if __name__ == "__main__":
    for name, compression in FILES.items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(build(compression))
