"""A unified log with a remote tier: reads that go from one tier into the other, and the files of a
segment that is copied."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from streamlog.errors import OffsetOutOfRange, StoreUnavailable
from streamlog.format.kafka_files.checkpoints import encode_epochs
from streamlog.format.kafka_files.names import SNAPSHOT, TXN_INDEX, file_name
from streamlog.format.kafka_files.producer_snapshot import encode_snapshot
from streamlog.log.api.batch_reader import BatchReader, BatchRun
from streamlog.log.api.tiering import LocalSegmentFiles
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.growing import GrowingFile, GrowingFolder
from streamlog.runtime.offload import Lane, Offload, run_owned
from streamlog.unified.state.segment import UnifiedLogSegment


class _Starts(Protocol):
    @property
    def local_log_start_offset(self) -> int: ...


class TieredReader:
    """A BatchReader over both tiers; the local one wins where both have an offset."""

    def __init__(self, local: BatchReader, remote: BatchReader, starts: _Starts) -> None:
        self._local = local
        self._remote = remote
        self._starts = starts

    async def read(
        self, offset: int, end_offset: int, max_bytes: int, *, is_required: bool
    ) -> BatchRun:
        """As BatchReader.read."""
        local_start = self._starts.local_log_start_offset
        if offset >= local_start:
            try:
                return await self._local.read(
                    offset, end_offset, max_bytes, is_required=is_required
                )
            except OffsetOutOfRange:
                # The segment was removed meanwhile, and is in the other tier.
                local_start = self._starts.local_log_start_offset
                if offset >= local_start:
                    raise
        return await self._remote.read(
            offset, min(end_offset, local_start), max_bytes, is_required=is_required
        )


class OpenSegmentFile:
    """A LocalFile: an open file, which stays readable when its name is gone."""

    def __init__(self, file: GrowingFile, name: str, path: Path | None, offload: Offload) -> None:
        self._file = file
        self._name = name
        self._offload = offload
        self.path = path
        self.size_bytes = file.size()

    async def read(self, position: int, length: int) -> bytes:
        """As LocalFile.read."""
        try:
            return await self._offload.run(Lane.READ, self._file.read, position, length)
        except OSError as error:
            raise typed_os_error(error, self._name, "reading", StoreUnavailable) from error


class _MemoryFile:
    """A LocalFile that is in memory alone."""

    path = None

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)

    async def read(self, position: int, length: int) -> bytes:
        return self._data[position : position + length]


@asynccontextmanager
async def held_files(
    folder: GrowingFolder,
    segment: UnifiedLogSegment,
    epochs: Sequence[tuple[int, int]],
    offload: Offload,
    find_lost: Callable[[], int | None],
) -> AsyncIterator[LocalSegmentFiles]:
    """The files of a closed segment, open until the context ends. `find_lost`: the first offset
    that the log's file lacks at its end, if any; it blocks. Errors: StoreUnavailable (also where
    the log's file is shorter or longer than the segment: a copy of it would be taken for the
    whole)."""
    opened = ExitStack()

    def work() -> LocalSegmentFiles:
        with opened:
            files = _open_all(folder, segment, offload, opened)
            if (lost := find_lost()) is not None:
                raise _lost_its_end(f"{folder}/{segment.log_name}", lost, segment.end)
            kept.push(opened.pop_all())
        return files

    with ExitStack() as kept:
        try:
            files = await run_owned(offload, Lane.FILES, work, lambda _: kept.close())
        except OSError as error:
            raise typed_os_error(error, str(folder), "opening", StoreUnavailable) from error
        yield files._replace(leader_epoch_index=encode_epochs(epochs))


def _open_all(
    folder: GrowingFolder, segment: UnifiedLogSegment, offload: Offload, opened: ExitStack
) -> LocalSegmentFiles:
    def held(name: str) -> OpenSegmentFile:
        file = folder.open_to_read(name)
        opened.callback(file.close)
        return OpenSegmentFile(file, name, folder.path_of(name), offload)

    base = segment.base_offset
    aborted = file_name(base, TXN_INDEX)
    snapshot = file_name(segment.end, SNAPSHOT)
    there = set(folder.list())
    log = held(segment.log_name)
    if log.size_bytes != segment.size:
        path = f"{folder}/{segment.log_name}"
        raise StoreUnavailable(
            f"{path} has {log.size_bytes} bytes, and the segment {segment.size}: it was changed by "
            "somebody else, and is not copied to the remote tier; put the file back from a copy",
            path=path,
            waiting_helps=False,
        )
    return LocalSegmentFiles(
        log,
        held(segment.index_name),
        held(segment.time_index_name),
        held(aborted) if aborted in there else None,
        # A damaged one was removed at the start: whoever builds on it would read the batches.
        held(snapshot) if snapshot in there else _MemoryFile(encode_snapshot([])),
        b"",
    )


def nothing_lost() -> None:
    """For `held_files`, of a log that may have gaps."""


def _lost_its_end(path: str, lost_from: int, end: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} ends before offset {lost_from}, and the segment before {end}: the file lost its "
        "end, and is not copied to the remote tier; put the segment's files back from a copy and "
        "start again, or start once with --accept-data-loss, which has what is left copied",
        path=path,
        waiting_helps=False,
    )
