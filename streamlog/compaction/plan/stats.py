"""Statistics of an object, from its index and footer: its rows, and the bytes of each."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate, repeat
from operator import sub

from streamlog.compaction.plan.spec import Rows
from streamlog.format.object.footer import decode_rows
from streamlog.format.object.index import (
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    ObjectIndex,
    decode_index,
)
from streamlog.format.rows import ObjectRow, rows_placed
from streamlog.runtime.buffers import Buffer

FIXED_BYTES = 500


class ObjectStats:
    """`rows`: as written, dead ones included. `totals[i]`: the bytes of all rows before row i."""

    __slots__ = ("attribute_bytes", "row", "rows", "totals")

    def __init__(
        self, row: ObjectRow, rows: Rows, sizes: array[int], attribute_bytes: int = 0
    ) -> None:
        self.row = row
        self.attribute_bytes = attribute_bytes
        self.rows = rows
        self.totals = array("Q", accumulate(sizes, initial=0))

    @property
    def memory_bytes(self) -> int:
        return FIXED_BYTES + 40 * len(self.rows)

    def bytes_between(self, first_stream: int, end_stream: int) -> int:
        """The bytes of streams first (inclusive) to end (exclusive)."""
        streams = self.rows.streams
        return (
            self.totals[bisect_left(streams, end_stream)]
            - (self.totals[bisect_left(streams, first_stream)])
        )

    def bytes_of(self, rows: Rows) -> array[int]:
        """An estimate of the bytes of each of `rows`, which are parts of this object's rows."""
        own, at = self.rows, 0
        if len(rows):
            first = bisect_left(own.streams, rows.streams[0])
            last = first + len(rows)
            if rows == own.part(first, last):
                sizes = map(sub, self.totals[first + 1 : last + 1], self.totals[first:last])
                return array("Q", map(max, sizes, repeat(1)))
        estimates = array("Q")
        for stream, start, end in zip(rows.streams, rows.starts, rows.ends, strict=True):
            while (own.streams[at], own.ends[at]) < (stream, end):
                at += 1
            # A row of the fold may be several rows here; `at` is the last of them.
            size, first = 0, at
            while True:
                own_start, own_end = own.starts[first], own.ends[first]
                held = self.totals[first + 1] - self.totals[first]
                part = max(min(end, own_end) - max(start, own_start), 0)
                size += held * part // (own_end - own_start)
                if own_start <= start or first == 0 or own.streams[first - 1] != stream:
                    break
                first -= 1
            estimates.append(max(size, 1))
        return estimates


def read_stats(row: ObjectRow, tail: Buffer, object_key: str) -> ObjectStats:
    """`tail`: the object's bytes from its index region to its end. Errors: Corrupt."""
    view = memoryview(tail)
    index = decode_index(view[: row.index_length], row, object_key=object_key)
    rows = decode_rows(view[row.index_length :], size_bytes=row.size_bytes, object_key=object_key)
    attribute_bytes = row.index_length - INDEX_HEADER_BYTES - INDEX_ROW_BYTES * len(index)
    sizes = _sizes(rows, index)
    return ObjectStats(row, rows_placed(rows, row.placements), sizes, attribute_bytes)


def _sizes(rows: Rows, index: ObjectIndex) -> array[int]:
    streams, starts, lengths = index.sizes()
    if streams == rows.streams and starts == rows.starts:
        return array("Q", lengths)
    sizes, at, last = array("Q", bytes(8 * len(rows))), 0, len(rows) - 1
    for stream_id, start, length in zip(streams, starts, lengths, strict=True):
        while at < last and (rows.streams[at], rows.ends[at]) <= (stream_id, start):
            at += 1
        if last >= 0:
            sizes[at] += length
    return sizes
