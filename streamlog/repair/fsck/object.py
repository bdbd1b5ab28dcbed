"""Checks one object against the fold: from its index region to its end, or all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamlog.errors import (
    Corrupt,
    Invalid,
    ObjectNotFound,
    StreamlogError,
    UnsupportedVersion,
)
from streamlog.format.object.block import BlockRow, decode_block
from streamlog.format.object.footer import ObjectFooter, decode_footer
from streamlog.format.object.header import HEADER_BYTES, decode_header
from streamlog.format.object.index import ObjectIndex, decode_index
from streamlog.format.ranged_gets import plan_gets
from streamlog.format.rows import Rows, rows_placed
from streamlog.metadata.interface import ObjectRow, RangeRow
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.object_reader import GET_BYTES, get_tail
from streamlog.repair.findings import (
    Finding,
    FindingKind,
    Range,
    RepairReport,
    Severity,
    some_ranges,
)
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

LOST_ADVICE = (
    "put the object back from a copy of the bucket; without one these offsets are lost, and reads "
    "of them fail"
)


class ObjectCheck:
    """Adds findings to `report`. Several objects may be under way.

    `damaged`: ids of objects that are gone, or are not what the metadata says of them; blocks are
    not looked at for this.
    """

    def __init__(
        self,
        cluster_id: str,
        store: ObjectStore,
        offload: Offload,
        report: RepairReport,
        *,
        deep: bool,
    ) -> None:
        self._cluster_id = cluster_id
        self._store = store
        self._offload = offload
        self._report = report
        self._deep = deep
        self.damaged: set[int] = set()

    async def run(self, row: ObjectRow, ranges: list[Range]) -> None:
        """`ranges`: those that streams need of the object, sorted. Errors: StoreUnavailable."""
        try:
            self.damaged.add(row.object_id)
            footer, index = await self._read(row)
            if self._is_as_named(row, footer, ranges):
                self.damaged.remove(row.object_id)
            if self._deep:
                await self._read_blocks(row, index)
        except ObjectNotFound:
            self._add(FindingKind.OBJECT_MISSING, row, "is not in the store", ranges)
        except (Corrupt, UnsupportedVersion, Invalid) as error:
            self._add(FindingKind.OBJECT_CORRUPT, row, f"cannot be read: {error}", ranges)
        self._report.counts["objects"] += 1
        self._report.counts["object_bytes"] += row.size_bytes

    async def _read(self, row: ObjectRow) -> tuple[ObjectFooter, ObjectIndex]:
        key = data_key(row.object_id)
        data = await get_tail(self._store, row)
        self._report.counts["read_bytes"] += len(data)
        return await self._offload.run(Lane.CPU, _decode, data, row, key)

    def _is_as_named(self, row: ObjectRow, footer: ObjectFooter, ranges: list[Range]) -> bool:
        identity = footer.identity
        if identity.cluster_id != self._cluster_id:
            self._add(
                FindingKind.OBJECT_FOREIGN, row, f"is of the cluster {identity.cluster_id}", ranges
            )
        elif (identity.object_id, footer.row) != (row.object_id, replace(row, placements=())):
            text = f"says of itself that it is {footer.row}, the metadata has {row}"
            self._add(FindingKind.OBJECT_WRONG, row, text, ranges)
        else:
            rows = rows_placed(Rows(footer.ranges), row.placements)
            missing = uncovered(ranges, list(rows))
            if not missing:
                return True
            text = f"does not hold {some_ranges(missing)}"
            self._add(FindingKind.OBJECT_WRONG, row, text, missing)
        return False

    async def _read_blocks(self, row: ObjectRow, index: ObjectIndex) -> None:
        key = data_key(row.object_id)
        decode_header(await self._store.get(key, 0, HEADER_BYTES), object_key=key)
        blocks = sorted(index.blocks(), key=lambda block: block.position)
        for get in plan_gets(blocks, GET_BYTES):
            data = await self._store.get(key, get.start, get.length)
            self._report.counts["blocks"] += len(get.blocks)
            self._report.counts["read_bytes"] += len(data)
            for block in get.blocks:
                await self._check_block(row, block, get.block_bytes(data, block), key)

    async def _check_block(
        self, row: ObjectRow, block: BlockRow, data: memoryview, key: str
    ) -> None:
        try:
            await self._offload.run(Lane.CPU, _decode_block, data, block, key)
        except StreamlogError as error:
            lost = [Range(block.stream_id, block.start, block.end)]
            self._add(FindingKind.OBJECT_CORRUPT, row, f"has a damaged block: {error}", lost)

    def _add(self, kind: FindingKind, row: ObjectRow, what: str, lost: Sequence[Range]) -> None:
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


def _decode(data: Buffer, row: ObjectRow, key: str) -> tuple[ObjectFooter, ObjectIndex]:
    footer = decode_footer(data, size_bytes=row.size_bytes, object_key=key)
    index = decode_index(memoryview(data)[: row.index_length], row, object_key=key)
    index.blocks()
    return footer, index


def _decode_block(data: memoryview, block: BlockRow, key: str) -> int:
    return len(decode_block(data, block, object_key=key))


def uncovered(ranges: Sequence[Range], rows: Sequence[RangeRow]) -> tuple[Range, ...]:
    """The parts of `ranges` that no row covers; both are sorted."""
    own: dict[int, list[RangeRow]] = {}
    for row in rows:
        own.setdefault(row.stream_id, []).append(row)
    missing = []
    for live in ranges:
        offset = live.start
        for row in own.get(live.stream_id, ()):
            if row.end > offset and row.start < live.end:
                if row.start > offset:
                    missing.append(Range(live.stream_id, offset, row.start))
                offset = row.end
        if offset < live.end:
            missing.append(Range(live.stream_id, offset, live.end))
    return tuple(missing)
