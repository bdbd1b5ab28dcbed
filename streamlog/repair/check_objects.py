"""fsck of streams and their objects.

1. Live objects are taken by id, so many at a time as have RANGES_MAX live ranges: memory is bound.
2. For each such part all streams are walked; what points into the part's objects is kept. The
   first walk also looks whether each stream's ranges meet from its start to its end.
3. Each object is read from its index region to its end and compared with what the fold says of it;
   a deep check reads all data blocks, too.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from streamlog.errors import (
    Corrupt,
    Invalid,
    ObjectNotFound,
    StreamlogError,
    UnsupportedVersion,
)
from streamlog.format.object_block import BlockRow, decode_block
from streamlog.format.object_footer import ObjectFooter, decode_footer
from streamlog.format.object_header import HEADER_BYTES, decode_header
from streamlog.format.object_index import ObjectIndex, decode_index
from streamlog.format.rows import Rows, rows_placed
from streamlog.metadata.compaction_interface import LiveObject
from streamlog.metadata.interface import ObjectRow, RangeRow, StreamRow
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.repair.findings import (
    Finding,
    Kind,
    Progress,
    Range,
    Report,
    Severity,
    some_ranges,
)
from streamlog.repair.in_flight import in_flight
from streamlog.repair.view import MetadataView
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

RANGES_MAX = 1_000_000
"""Live ranges held at a time: 24 bytes each."""
OBJECTS_MAX = 50_000
GET_BYTES_MAX = 4 << 20
"""A deep check reads neighbouring blocks up to this size by one GET."""
ID_MAX = 1 << 64
LOST_ADVICE = (
    "put the object back from a copy of the bucket; without one these offsets are lost, and reads "
    "of them fail"
)


@dataclass(slots=True)
class _Part:
    """Objects by id, those past `after` up to `last` (inclusive)."""

    after: int
    last: int
    objects: list[LiveObject]
    ranges: dict[int, array[int]] = field(default_factory=dict)
    """Object id → stream, start, end of each live range, by (stream, start)."""

    def ranges_of(self, object_id: int) -> list[Range]:
        flat = iter(self.ranges.get(object_id, ()))
        return [Range(*one) for one in zip(flat, flat, flat, strict=True)]


class ObjectChecks:
    def __init__(
        self,
        view: MetadataView,
        store: ObjectStore,
        offload: Offload,
        report: Report,
        progress: Progress,
        *,
        deep: bool,
    ) -> None:
        self._view = view
        self._store = store
        self._offload = offload
        self._report = report
        self._progress = progress
        self._deep = deep
        self.live = array("Q")
        """Ids of all objects that the fold knows, sorted."""

    async def run(self) -> None:
        """Errors: StoreUnavailable, MetadataUnavailable."""
        rows, is_first, total = self._view.streams(), True, self._view.live_objects_count
        self._report.counts["streams"] = len(rows)
        async for part in self._parts():
            await self._walk(rows, part, is_first)
            is_first = False
            self._check_listed(part)
            for low in range(0, len(part.objects), 256):
                some = part.objects[low : low + 256]
                await in_flight(some, lambda one, part=part: self._check(one, part))  # type: ignore[misc]
                self._report.counts["objects"] += len(some)
                self._progress("checking objects", self._report.counts["objects"], total)

    async def _parts(self) -> AsyncIterator[_Part]:
        """At least one; the last one has all ids that are left."""
        after, objects, ranges = 0, list[LiveObject](), 0
        async for page in self._view.live_objects():
            for one in page:
                if objects and (
                    ranges + one.live_ranges > RANGES_MAX or len(objects) >= OBJECTS_MAX
                ):
                    last = objects[-1].row.object_id
                    yield _Part(after, last, objects)
                    after, objects, ranges = last, [], 0
                objects.append(one)
                ranges += one.live_ranges
                self.live.append(one.row.object_id)
        yield _Part(after, ID_MAX, objects)

    # streams

    async def _walk(self, rows: Sequence[StreamRow], part: _Part, is_first: bool) -> None:
        for number, row in enumerate(rows):
            at = row.start
            try:
                async for page in self._view.ranges(row):
                    for one in page:
                        if is_first:
                            self._check_meets(row, at, one.start)
                            self._report.counts["ranges"] += 1
                        at = one.end
                        object_id = one.object.object_id
                        if part.after < object_id <= part.last:
                            known = part.ranges.setdefault(object_id, array("Q"))
                            known.extend((row.stream_id, one.start, one.end))
            except Corrupt as error:
                if is_first:
                    self._add_unreadable(row, at, error)
                continue
            if is_first:
                self._check_meets(row, at, row.end)
                self._report.counts["records"] += row.end - row.start
                if number % 100 == 0:
                    self._progress("walking streams", number, len(rows))

    def _check_meets(self, row: StreamRow, at: int, start: int) -> None:
        if at == start:
            return
        what = "are in no object" if at < start else "are in two objects"
        lost = Range(row.stream_id, min(at, start), max(at, start))
        self._report.add(
            Finding(
                Kind.STREAM_RANGES,
                Severity.ERROR,
                f"{lost} {what}, by the metadata",
                "rebuild the metadata with streamlog recover",
                stream_id=row.stream_id,
                lost=(lost,),
            )
        )

    def _add_unreadable(self, row: StreamRow, at: int, error: Corrupt) -> None:
        lost = Range(row.stream_id, at, row.end)
        self._report.add(
            Finding(
                Kind.CHECKPOINT_CORRUPT,
                Severity.ERROR,
                f"where {lost} lie is unknown: {error}",
                "rebuild the metadata with streamlog recover",
                key=str(error.fields.get("object_key", "")),
                stream_id=row.stream_id,
                lost=(lost,),
            )
        )

    def _check_listed(self, part: _Part) -> None:
        for object_id in sorted(part.ranges.keys() - {o.row.object_id for o in part.objects}):
            self._add_count(object_id, f"has {_count(part, object_id)} live ranges and is not live")

    # objects

    async def _check(self, one: LiveObject, part: _Part) -> None:
        row = one.row
        ranges = part.ranges_of(row.object_id)
        if len(ranges) > one.live_ranges:
            self._add_count(
                row.object_id, f"has {len(ranges)} live ranges, the metadata counts less"
            )
        if not ranges and self._view.is_all_checkpointed:
            self._add_count(
                row.object_id,
                f"has no live range, the metadata counts {one.live_ranges}",
                Severity.WARNING,
            )
        try:
            footer, index = await self._read(row)
            await self._compare(row, footer, ranges)
            if self._deep:
                await self._read_blocks(row, index)
        except ObjectNotFound:
            self._add(Kind.OBJECT_MISSING, row, "is not in the store", ranges)
        except (Corrupt, UnsupportedVersion, Invalid) as error:
            self._add(Kind.OBJECT_CORRUPT, row, f"cannot be read: {error}", ranges)
        self._report.counts["object_bytes"] += row.size_bytes

    async def _read(self, row: ObjectRow) -> tuple[ObjectFooter, ObjectIndex]:
        key = data_key(row.object_id)
        # One byte more than there should be shows an object that is too long.
        start, length = row.index_position, row.size_bytes - row.index_position
        data = await self._store.get(key, start, length + 1)
        if len(data) != length:
            info = await self._store.head(key)
            raise Corrupt(
                f"it has {info.size_bytes} bytes instead of {row.size_bytes}", object_key=key
            )
        self._report.counts["read_bytes"] += len(data)
        return await self._offload.run(Lane.CPU, _decode, data, row, key)

    async def _compare(self, row: ObjectRow, footer: ObjectFooter, ranges: list[Range]) -> None:
        identity = footer.identity
        if identity.cluster_id != self._view.cluster_id:
            self._add(Kind.OBJECT_FOREIGN, row, f"is of the cluster {identity.cluster_id}", ranges)
        elif (identity.object_id, footer.row) != (row.object_id, replace(row, placements=())):
            what = f"says of itself that it is {footer.row}, the metadata has {row}"
            self._add(Kind.OBJECT_WRONG, row, what, ranges)
        else:
            rows = rows_placed(Rows(footer.ranges), row.placements)
            missing = uncovered(ranges, list(rows))
            if missing:
                what = f"does not hold {some_ranges(missing)}"
                self._add(Kind.OBJECT_WRONG, row, what, missing)

    async def _read_blocks(self, row: ObjectRow, index: ObjectIndex) -> None:
        key = data_key(row.object_id)
        decode_header(await self._store.get(key, 0, HEADER_BYTES), object_key=key)
        blocks = sorted(index.blocks(), key=lambda block: block.position)
        at = 0
        while at < len(blocks):
            run = [blocks[at]]
            start = run[0].position
            while at + len(run) < len(blocks):
                block = blocks[at + len(run)]
                if block.position + block.length - start > GET_BYTES_MAX:
                    break
                run.append(block)
            at += len(run)
            data = await self._store.get(key, start, run[-1].position + run[-1].length - start)
            self._report.counts["blocks"] += len(run)
            self._report.counts["read_bytes"] += len(data)
            for block in run:
                await self._check_block(row, block, memoryview(data)[block.position - start :], key)

    async def _check_block(
        self, row: ObjectRow, block: BlockRow, data: memoryview, key: str
    ) -> None:
        try:
            await self._offload.run(Lane.CPU, _decode_block, data[: block.length], block, key)
        except StreamlogError as error:
            lost = [Range(block.stream_id, block.start, block.end)]
            self._add(Kind.OBJECT_CORRUPT, row, f"has a damaged block: {error}", lost)

    def _add(self, kind: Kind, row: ObjectRow, what: str, lost: Sequence[Range]) -> None:
        ranges = tuple(lost)
        told = f"; it holds {some_ranges(ranges)}" if ranges else ""
        self._report.add(
            Finding(
                kind,
                Severity.ERROR if ranges else Severity.WARNING,
                f"object {row.object_id} {what}{told}",
                LOST_ADVICE if ranges else "no stream needs it any more",
                key=data_key(row.object_id),
                object_id=row.object_id,
                lost=ranges,
            )
        )

    def _add_count(self, object_id: int, what: str, severity: Severity = Severity.ERROR) -> None:
        self._report.add(
            Finding(
                Kind.OBJECT_COUNT,
                severity,
                f"object {object_id} {what}",
                "rebuild the metadata with streamlog recover",
                key=data_key(object_id),
                object_id=object_id,
            )
        )


def _count(part: _Part, object_id: int) -> int:
    return len(part.ranges[object_id]) // 3


def _decode(data: Buffer, row: ObjectRow, key: str) -> tuple[ObjectFooter, ObjectIndex]:
    footer = decode_footer(data, size_bytes=row.size_bytes, object_key=key)
    index = decode_index(memoryview(data)[: row.index_length], row, object_key=key)
    index.blocks()
    return footer, index


def _decode_block(data: memoryview, block: BlockRow, key: str) -> int:
    return len(decode_block(data, block, object_key=key))


def uncovered(ranges: Sequence[Range], rows: Sequence[RangeRow]) -> tuple[Range, ...]:
    """Of `ranges`, what no row holds; both sorted."""
    own: dict[int, list[RangeRow]] = {}
    for row in rows:
        own.setdefault(row.stream_id, []).append(row)
    missing = []
    for one in ranges:
        at = one.start
        for row in own.get(one.stream_id, ()):
            if row.end > at and row.start < one.end:
                if row.start > at:
                    missing.append(Range(one.stream_id, at, row.start))
                at = row.end
        if at < one.end:
            missing.append(Range(one.stream_id, at, one.end))
    return tuple(missing)
