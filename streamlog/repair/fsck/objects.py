"""fsck of streams and their objects.

1. Live objects are checked in batches, by id. A batch has at most RANGES_MAX live ranges, which
   bounds memory.
2. For each batch the ranges of all streams are read, and those in the batch's objects kept. The
   first pass also checks that each stream's ranges meet from its start to its end.
3. Each object is read from its index region to its end and compared with the fold; a deep check
   reads all data blocks, too.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence, Set
from dataclasses import dataclass, field

from streamlog.errors import Corrupt
from streamlog.metadata.compaction_interface import LiveObject
from streamlog.metadata.interface import StreamRow
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.repair.findings import Finding, FindingKind, Progress, Range, RepairReport, Severity
from streamlog.repair.fsck.object import ObjectCheck
from streamlog.repair.in_flight import in_flight
from streamlog.repair.view import MetadataView
from streamlog.runtime.offload import Offload

RANGES_MAX = 1_000_000
"""Live ranges held at a time: 24 bytes each."""
OBJECTS_MAX = 50_000
ID_MAX = 1 << 64


@dataclass(slots=True)
class ObjectBatch:
    """Live objects with ids past `after` up to `last` (inclusive), by id."""

    after: int
    last: int
    objects: list[LiveObject]
    ranges: dict[int, array[int]] = field(default_factory=dict)
    """Object id → stream, start, end of each live range, by (stream, start)."""

    def ranges_of(self, object_id: int) -> list[Range]:
        flat = iter(self.ranges.get(object_id, ()))
        return [Range(*values) for values in zip(flat, flat, flat, strict=True)]


class ObjectChecks:
    def __init__(
        self,
        view: MetadataView,
        store: ObjectStore,
        offload: Offload,
        report: RepairReport,
        progress: Progress,
        *,
        deep: bool,
    ) -> None:
        self._view = view
        self._report = report
        self._progress = progress
        self._check = ObjectCheck(view.cluster_id, store, offload, report, deep=deep)
        self.live = array("Q")
        """Ids of all objects that the fold knows, sorted."""

    @property
    def damaged(self) -> Set[int]:
        """As `ObjectCheck`'s; complete after `run`."""
        return self._check.damaged

    async def run(self) -> None:
        """Errors: StoreUnavailable, MetadataUnavailable."""
        total = self._view.live_objects_count
        async for batch in self.batches():
            for low in range(0, len(batch.objects), 256):
                rows = [
                    (listed.row, batch.ranges_of(listed.row.object_id))
                    for listed in batch.objects[low : low + 256]
                ]
                await in_flight(rows, lambda row: self._check.run(*row))
                self._progress("checking objects", self._report.counts["objects"], total)

    async def batches(self) -> AsyncIterator[ObjectBatch]:
        """Batches of objects with the live ranges that point into them. Checks the streams; the
        caller checks the objects. Errors: StoreUnavailable, MetadataUnavailable.
        """
        rows, is_first = self._view.streams(), True
        self._report.counts["streams"] = len(rows)
        async for batch in self._batches():
            await self._read_ranges(rows, batch, is_first)
            is_first = False
            self._check_listed(batch)
            for listed in batch.objects:
                self._check_counted(listed, _count(batch, listed.row.object_id))
            yield batch

    async def _batches(self) -> AsyncIterator[ObjectBatch]:
        """At least one batch; the last one goes up to the highest id."""
        after, objects, ranges = 0, list[LiveObject](), 0
        async for page in self._view.live_objects():
            for one in page:
                if objects and (
                    ranges + one.live_ranges > RANGES_MAX or len(objects) >= OBJECTS_MAX
                ):
                    last = objects[-1].row.object_id
                    yield ObjectBatch(after, last, objects)
                    after, objects, ranges = last, [], 0
                objects.append(one)
                ranges += one.live_ranges
                self.live.append(one.row.object_id)
        yield ObjectBatch(after, ID_MAX, objects)

    # streams

    async def _read_ranges(
        self, rows: Sequence[StreamRow], batch: ObjectBatch, is_first: bool
    ) -> None:
        for number, row in enumerate(rows):
            offset = row.start
            try:
                async for page in self._view.ranges(row):
                    for part in page:
                        if is_first:
                            self._check_meets(row, offset, part.start)
                            self._report.counts["ranges"] += 1
                        offset = part.end
                        object_id = part.object.object_id
                        if batch.after < object_id <= batch.last:
                            flat = batch.ranges.setdefault(object_id, array("Q"))
                            flat.extend((row.stream_id, part.start, part.end))
            except Corrupt as error:
                if is_first:
                    self._add_unreadable(row, offset, error)
                continue
            if is_first:
                self._check_meets(row, offset, row.end)
                self._report.counts["records"] += row.end - row.start
                if number % 100 == 0:
                    self._progress("checking streams", number, len(rows))

    def _check_meets(self, row: StreamRow, at: int, start: int) -> None:
        if at == start:
            return
        what = "are in no object" if at < start else "are in two objects"
        lost = Range(row.stream_id, min(at, start), max(at, start))
        self._report.add(
            Finding(
                FindingKind.STREAM_RANGES,
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
                FindingKind.CHECKPOINT_CORRUPT,
                Severity.ERROR,
                f"where {lost} lie is unknown: {error}",
                "rebuild the metadata with streamlog recover",
                key=str(error.fields.get("object_key", "")),
                stream_id=row.stream_id,
                lost=(lost,),
            )
        )

    def _check_listed(self, batch: ObjectBatch) -> None:
        for object_id in sorted(batch.ranges.keys() - {o.row.object_id for o in batch.objects}):
            self._add_count(
                object_id, f"has {_count(batch, object_id)} live ranges and is not live"
            )

    # objects

    def _check_counted(self, one: LiveObject, ranges: int) -> None:
        object_id = one.row.object_id
        if ranges > one.live_ranges:
            self._add_count(object_id, f"has {ranges} live ranges, the metadata counts less")
        if not ranges and self._view.is_all_checkpointed:
            self._add_count(
                object_id,
                f"has no live range, the metadata counts {one.live_ranges}",
                Severity.WARNING,
            )

    def _add_count(self, object_id: int, what: str, severity: Severity = Severity.ERROR) -> None:
        self._report.add(
            Finding(
                FindingKind.OBJECT_COUNT,
                severity,
                f"object {object_id} {what}",
                "rebuild the metadata with streamlog recover",
                key=data_key(object_id),
                object_id=object_id,
            )
        )


def _count(batch: ObjectBatch, object_id: int) -> int:
    return len(batch.ranges.get(object_id, ())) // 3
