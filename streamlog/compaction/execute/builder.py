"""Builds one output object: blocks are copied as they are, or small ones merged into larger ones.

1. Blocks come in the order of the output's rows; each block's CRC is checked.
2. A whole block of at least half the target is copied byte for byte, unless it was staged.
3. Other blocks are decoded, clipped to the batches that overlap the row, and merged up to the
   target.
4. Every row must be covered from its start to its end: missing offsets raise Corrupt.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.codec.crc import crc32c
from streamlog.compaction.execute.output import Output
from streamlog.format.corrupt import corrupt
from streamlog.format.entry import StreamEntry
from streamlog.format.object.block import BlockCompression, BlockRow, decode_block, encode_block
from streamlog.format.object.footer import ObjectIdentity, encode_footer
from streamlog.format.object.header import HEADER_BYTES, encode_header
from streamlog.format.object.index import encode_attributes, encode_region, encode_row
from streamlog.format.rows import ObjectRow, RangeRow
from streamlog.model.batch import StoredBatch
from streamlog.runtime.buffers import Buffer


class OutputBuilder:
    """Burns CPU; used from one thread at a time."""

    def __init__(
        self, identity: ObjectIdentity, rows: Sequence[RangeRow], target_bytes: int, output: Output
    ) -> None:
        self._identity = identity
        self._rows = rows
        self._target_bytes = target_bytes
        self._output = output
        self._position = HEADER_BYTES
        self._index: list[bytes] = []
        self._runs: list[bytes] = []
        self._runs_bytes = 0
        self._pending: list[StreamEntry] = []
        self._pending_sizes: list[int] = []
        self._pending_bytes = 0
        self._alone: tuple[BlockRow, Buffer, Sequence[StoredBatch], int] | None = None
        """A small block, with its epoch, that is copied if no other block joins it. While there is
        one, nothing is pending."""
        self._is_packing = False
        self._stream_id = -1
        self._end = -1
        """The offset up to which the stream is covered."""
        self._is_new = True
        """The row has no batch yet. A trim may have cut into its first one."""
        output.write([encode_header()])

    def begin(self, stream_id: int, start: int) -> None:
        """The following blocks cover the stream from `start` on."""
        if (stream_id, start) != (self._stream_id, self._end):
            self.flush()
            self._stream_id, self._end = stream_id, start
            self._is_new = True

    def add(self, block: BlockRow, data: Buffer, end: int, epoch: int, key: str) -> None:
        """The block's batches from where the stream is covered, up to `end`. Errors: Corrupt."""
        batches = decode_block(data, block, object_key=key)
        if block.start > self._end:
            raise corrupt(
                f"offsets {self._end} to {block.start} of stream {block.stream_id} are missing",
                key,
                block.position,
                block.position + block.length,
            )
        is_whole = block.start == self._end and block.end <= end and block.place is None
        if is_whole and 2 * block.length >= self._target_bytes:
            self.flush()
            self._copy(block, data, batches)
            return
        if is_whole and not self._pending and self._alone is None:
            self._alone = block, data, batches, epoch
            self._end = block.end
            self._is_new = False
            return
        self._join()
        is_packed = block.compression != BlockCompression.NONE
        for batch in batches:
            if batch.end_offset <= self._end or batch.base_offset >= end:
                continue
            if batch.end_offset > end or (batch.base_offset < self._end and not self._is_new):
                raise corrupt(
                    f"a batch of stream {block.stream_id} at {batch.base_offset} crosses the end "
                    "of a live range",
                    key,
                    block.position,
                    block.position + block.length,
                )
            self._merge(batch, epoch, is_packed)

    def finish_part(self, end: int, key: str) -> None:
        """Checks that the blocks since `begin` reach `end`. Errors: Corrupt."""
        if self._end < end:
            raise corrupt(
                f"offsets {self._end} to {end} of stream {self._stream_id} are missing", key, 0, 0
            )

    def flush(self) -> None:
        """Writes the batches that wait for neighbours."""
        if self._alone is not None:
            alone, data, batches, _ = self._alone
            self._alone = None
            self._copy(alone, data, batches)
        if not self._pending:
            return
        wanted = BlockCompression.ZSTD if self._is_packing else BlockCompression.NONE
        block = encode_block(self._pending, self._pending_sizes, wanted)
        self._emit(self._pending, block.parts, block.size_bytes, block.crc32c, block.compression)
        self._pending, self._pending_sizes, self._pending_bytes = [], [], 0

    def finish(self) -> ObjectRow:
        """Writes index and footer; the object's row."""
        self.flush()
        region = encode_region(self._index, self._runs)
        region_crc = crc32c(region)
        tail = encode_footer(
            self._identity,
            self._rows,
            index_position=self._position,
            index_length=len(region),
            index_crc32c=region_crc,
        )
        self._output.write([region, tail])
        return ObjectRow(
            self._identity.object_id,
            self._position + len(region) + len(tail),
            self._position,
            len(region),
            region_crc,
        )

    def _copy(self, block: BlockRow, data: Buffer, batches: Sequence[StoredBatch]) -> None:
        self._emit(batches, [data], block.length, block.crc32c, block.compression)
        self._end = block.end
        self._is_new = False

    def _join(self) -> None:
        """Merges the small block that stood alone with what follows."""
        if self._alone is not None:
            block, _, batches, epoch = self._alone
            self._alone = None
            for batch in batches:
                self._merge(batch, epoch, block.compression != BlockCompression.NONE)

    def _merge(self, batch: StoredBatch, epoch: int, is_packed: bool) -> None:
        payload = batch.parts[0]
        size = len(payload)
        if self._pending and (
            self._pending_bytes + size > self._target_bytes or is_packed != self._is_packing
        ):
            self.flush()
        self._is_packing = is_packed
        self._pending.append(
            StreamEntry(
                self._stream_id,
                epoch,
                batch.base_offset,
                batch.record_count,
                batch.base_timestamp_ms,
                batch.parts,
                batch.attributes,
                crc32c(payload),
            )
        )
        self._pending_sizes.append(size)
        self._pending_bytes += size
        self._end = batch.end_offset
        self._is_new = False

    def _emit(
        self,
        batches: Sequence[StoredBatch] | Sequence[StreamEntry],
        parts: Sequence[Buffer],
        size_bytes: int,
        crc: int,
        compression: int,
    ) -> None:
        run = encode_attributes(batches)
        self._index.append(
            encode_row(
                self._stream_id,
                batches[0].base_offset,
                batches[-1].end_offset,
                self._position,
                size_bytes,
                crc,
                len(batches),
                self._runs_bytes,
                compression,
            )
        )
        self._runs.append(run)
        self._runs_bytes += len(run)
        self._output.write(parts)
        self._position += size_bytes
