"""How batches are cut while the store's disk is nearly full."""

from __future__ import annotations

from typing import cast

from streamlog.engine.append.group import Group
from streamlog.engine.stream_core import StreamAppend, StreamCore
from streamlog.engine.upload.upload_size import PIECE_BYTES_MIN, UploadSize
from streamlog.format.entry import StreamEntry

TARGET = 16 << 20


def test_the_limit_halves_on_refused_uploads_and_doubles_on_stored_ones() -> None:
    changes: list[bool] = []
    size = UploadSize(TARGET, changes.append)
    size.stored(TARGET)
    assert (size.limit_bytes, changes) == (None, [])
    size.refuse(TARGET)
    size.refuse(TARGET // 2)
    assert size.limit_bytes == TARGET // 4
    assert size.is_cut(TARGET // 4 + 1)
    assert not size.is_cut(TARGET // 4)
    # Another one of full size, which was under way, is refused as well.
    size.refuse(TARGET)
    assert size.limit_bytes == TARGET // 8
    size.stored(1000)
    assert size.limit_bytes == TARGET // 8
    size.stored(TARGET // 8)
    assert size.limit_bytes == TARGET // 4
    for _ in range(20):
        size.refuse(PIECE_BYTES_MIN)
    assert size.limit_bytes == PIECE_BYTES_MIN
    assert set(changes) == {True}
    while size.limit_bytes is not None:
        size.stored(size.limit_bytes)
    assert changes[-1] is False
    size.end()
    assert changes.count(False) == 1


def group(sequence: int, *sizes: int) -> Group:
    made = Group()
    for size in sizes:
        entry = StreamEntry(1, 1, 0, 1, 0, (bytes(size),), b"", 0)
        made.items.append(StreamAppend.replayed(cast(StreamCore, None), entry, 0))
        made.size_bytes += size
    made.wal_sequence = sequence
    return made


def test_each_piece_allows_the_wal_to_release_what_it_completes() -> None:
    whole = Group()
    # The second group was lost with its streams and has no sequence of its own.
    for part in (group(7, 10, 20), group(0, 30), group(8, 40, 50)):
        whole.extend(part)
    first, rest = whole.split(15)
    assert ([item.size_bytes for item in first.items], first.wal_sequence) == ([10], 0)
    first, rest = rest.split(55)
    assert ([item.size_bytes for item in first.items], first.wal_sequence) == ([20, 30], 7)
    assert (first.size_bytes, rest.size_bytes) == (50, 90)
    first, rest = rest.split(1)
    assert ([item.size_bytes for item in first.items], first.wal_sequence) == ([40], 0)
    first, rest = rest.split(1)
    assert ([item.size_bytes for item in first.items], first.wal_sequence) == ([50], 8)
    assert (rest.items, rest.size_bytes, rest.wal_sequence) == ([], 0, 0)
