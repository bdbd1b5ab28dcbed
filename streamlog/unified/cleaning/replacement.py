"""A cleaned segment on its way into a unified log, as Kafka does it.

    OFFSET.log.cleaned   written, batch by batch; a crash leaves it, and the next open removes it
    OFFSET.log.swap      complete and durable: from here on a crash ends in the swap
    *.deleted            the segments in whose place it comes
    OFFSET.log           part of the log

Readers that have opened an old file read it to its end; all others wait for the swap, a few
milliseconds, and read the new one (`UnifiedLogSegment.replaced`).
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from threading import Lock
from typing import Protocol, TypeVar

from streamlog.codec.batch import CONTROL, scan
from streamlog.codec.control import ControlType, decode_end_marker
from streamlog.errors import Invalid
from streamlog.format.kafka_files.names import CLEANED, LOG, file_name
from streamlog.format.kafka_files.transaction_index import AbortedTxn
from streamlog.log.api.abstract_log import AbstractLogSegment
from streamlog.log.api.cleaning import SegmentReplacement
from streamlog.log.partition.batch_metadata import LogBatchMetadata
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.growing import GrowingFile
from streamlog.unified.cleaning.swap_files import begin, finish, give_up, swap
from streamlog.unified.partition_folder import PartitionFolder
from streamlog.unified.state.segment import UnifiedLogSegment

T = TypeVar("T")


class OwnsSegments(Protocol):
    """The log whose segments are replaced."""

    async def shielded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Calls `work` to its end even where the caller is cancelled; the log's end waits for it.

        Errors: those of `work`, Closed.
        """
        ...

    def swapping(
        self, old: Sequence[UnifiedLogSegment], new: UnifiedLogSegment
    ) -> AbstractAsyncContextManager[None]:
        """Within it the files are swapped: readers that come now wait, and find `new` afterwards.

        An error within it ends the log: its next open finds the swap done or not done. Errors:
        Invalid (an old one was deleted meanwhile).
        """
        ...


class UnifiedReplacement(SegmentReplacement):
    """`aborted`: the transactions whose markers lie in the old segments."""

    def __init__(
        self,
        owner: OwnsSegments,
        folder: PartitionFolder,
        old: Sequence[UnifiedLogSegment],
        aborted: Sequence[AbortedTxn],
        interval_bytes: int,
        delay_ms: Callable[[], int],
    ) -> None:
        self._owner = owner
        self._folder = folder
        self._old = list(old)
        self._aborted = {entry.last_offset: entry for entry in aborted}
        self._interval_bytes = interval_bytes
        self._delay_ms = delay_ms
        self._new = UnifiedLogSegment(old[0].base_offset)
        self._new.last_append = max(one.last_append for one in old)
        self._file: GrowingFile | None = None
        self._writing = Lock()
        self._is_over = False

    @property
    def _name(self) -> str:
        return file_name(self._new.base_offset, LOG)

    async def append(self, batches: Buffer) -> None:
        self._check_going_on()
        new = self._new
        await self._alone(lambda: self._begun().append([batches]))
        for batch in scan(batches, verify_crc=False):
            header = batch.header
            metadata = LogBatchMetadata.of(
                header,
                leader_epoch=header.leader_epoch,
                append_time_ms=-1,
                # What is left of it for its sequence is found by no look-up by time.
                max_timestamp_ms=header.max_timestamp_ms if header.record_count else -1,
            )
            span = header.last_offset_delta + 1
            new.account(header.base_offset, span, metadata, self._interval_bytes)
            if header.attributes & CONTROL and header.record_count:
                marker = decode_end_marker(batch.view)
                entry = self._aborted.get(header.base_offset)
                is_abort = marker is not None and marker.control_type is ControlType.ABORT
                if is_abort and entry is not None and new.aborted is not None:
                    new.aborted.append(entry)

    async def commit(self) -> None:
        """As SegmentReplacement.commit."""
        self._check_going_on()
        new, old, folder = self._new, self._old, self._folder
        # The clean end is written when the whole round is done, if it is: nobody may take what this
        # segment lacks from now on for lost.
        await folder.note_gaps()
        new.seal()
        new.end = old[-1].end
        new.largest_visible = new.largest
        assert new.offsets is not None
        assert new.times is not None
        offsets, times, aborted = bytes(new.offsets), bytes(new.times), tuple(new.aborted or ())
        await self._alone(
            lambda: finish(folder.folder, self._begun(), new.base_offset, offsets, times, aborted)
        )
        new.drop_indexes()
        # An open that met an older one within the new segment would miss what the cleaning removed
        # in front of it.
        await folder.save_recovery_point()
        self._is_over = True
        # Cut off among its renames it would end the log, and a node that stops cancels its cleaner.
        await self._owner.shielded(self._swap)

    async def _swap(self) -> None:
        new, old, folder = self._new, self._old, self._folder
        bases = [one.base_offset for one in old]
        try:
            async with self._owner.swapping(old, new):
                names = await folder.run(
                    folder.files.exclusively, lambda: swap(folder.folder, new.base_offset, bases)
                )
        except Invalid:
            await self._alone(self._remove)
            raise
        folder.remove_later(names, self._delay_ms())

    async def abandon(self) -> None:
        if not self._is_over:
            self._is_over = True
            await self._alone(self._remove)

    def _remove(self) -> None:
        if self._file is not None:
            give_up(self._folder.folder, self._file, self._new.base_offset)

    async def _alone(self, work: Callable[[], T]) -> T:
        """Calls `work` off the loop, behind what a caller that was cancelled has left running: it
        has the file open still. Errors: StoreUnavailable."""

        def locked() -> T:
            with self._writing:
                return work()

        return await self._folder.run(locked)

    def _begun(self) -> GrowingFile:
        """The new segment's file, made by the first call. Errors: OSError."""
        if self._is_over:
            raise OSError(errno.EBADF, "the cleaning was given up", self._name)
        if self._file is None:
            self._file = begin(self._folder.folder, self._name + CLEANED)
        return self._file

    def _check_going_on(self) -> None:
        if self._is_over:
            raise Invalid("the replacement was committed or abandoned already")


def checked(
    segments: Sequence[UnifiedLogSegment], old: Sequence[AbstractLogSegment]
) -> list[UnifiedLogSegment]:
    """The old ones as the log's own. Errors: Invalid."""
    wanted = {id(one) for one in old}
    places = [index for index, one in enumerate(segments) if id(one) in wanted]
    found = [segments[index] for index in places]
    is_row = len(found) == len(old) > 0 and places[-1] - places[0] == len(places) - 1
    if not is_row or any(one.is_active or one.replaced is not None for one in found):
        raise Invalid("segments that are replaced are neighbours, inactive, and still the log's")
    return found
