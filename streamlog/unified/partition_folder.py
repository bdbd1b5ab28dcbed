"""What an open unified log may do with its folder, besides appending and reading."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from streamlog.errors import StoreUnavailable
from streamlog.format.kafka_files.names import (
    DELETED,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    file_name,
)
from streamlog.log.api.environment import LogEnvironment
from streamlog.model.partition import TopicPartition
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.runtime.offload import Lane, Offload
from streamlog.unified.disk.folder_writes import FolderWrites
from streamlog.unified.disk.log_files import IndexFiles, LogFiles
from streamlog.unified.read.kept_files import KeptFiles
from streamlog.unified.token_file import TOKEN, encode_token

if TYPE_CHECKING:
    from streamlog.unified.log_folder import LogFolder

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class PartitionFolder:
    """Of one partition, while its log is open here."""

    def __init__(
        self,
        partition: TopicPartition,
        owner: LogFolder,
        folder: GrowingFolder,
        files: LogFiles,
        remove: Callable[[], Awaitable[None]],
    ) -> None:
        self.folder = folder
        self.files = files
        self._partition = partition
        self._owner = owner
        self._remove = remove
        self._has_failed = False

    @property
    def environment(self) -> LogEnvironment:
        return self._owner.environment

    @property
    def offload(self) -> Offload:
        return self._owner.offload

    @property
    def writes(self) -> FolderWrites:
        """Those of the log folder."""
        return self._owner.writes

    @property
    def kept_files(self) -> KeptFiles:
        """Those of the log folder."""
        return self._owner.kept_files

    async def save_start(self, offset: int) -> None:
        """The log start offset is durable on return. Errors: StoreUnavailable, DiskFull: with
        `has_no_side_effects` it is as before."""
        await self._owner.log_starts.change(self._partition, offset)

    async def note_start(self, offset: int) -> None:
        """As LogFolder.note_start."""
        await self._owner.note_start(self._partition, offset)

    async def save_token(self, token: bytes) -> None:
        """The fencing token, and all batches before it, are durable on return. Errors:
        StoreUnavailable."""
        await self.run(self.files.replace, TOKEN, encode_token(token))

    def note_recovery_point(self, offset: int) -> None:
        """All before the offset is durable, with its indexes. It is written down soon."""
        self._owner.recovery_points.note(self._partition, offset)
        self._owner.save_soon()

    async def save_recovery_point(self) -> None:
        """What was noted is durable on return. Errors: StoreUnavailable."""
        await self._owner.recovery_points.save()

    async def remove_segments(self, bases: Sequence[int], delay_ms: int) -> None:
        """The segments are no longer the log's on return; their bytes go after the delay.

        Errors: StoreUnavailable.
        """
        renamed = await self.run(self.files.exclusively, lambda: self._rename_deleted(bases))
        self.remove_later(renamed, delay_ms)

    def remove_later(self, names: Sequence[str], delay_ms: int) -> None:
        """Removes files that are no longer part of the log."""
        self._owner.remove_later(self._partition, self.folder, names, delay_ms)

    @property
    def clean_end_offset(self) -> int:
        """-1: the log was never cleaned."""
        return self._owner.cleaned_offsets.find(self._partition)

    @property
    def may_have_gaps(self) -> bool:
        """A cleaning may have removed offsets, or their loss is accepted."""
        return self._owner.accepts_data_loss or self.clean_end_offset >= 0

    async def note_gaps(self) -> None:
        """The log may have gaps between its batches for good; durable on return. Errors:
        StoreUnavailable."""
        if self.clean_end_offset < 0:
            await self._owner.cleaned_offsets.change(self._partition, 0)

    async def save_clean_end(self, offset: int) -> None:
        """Durable on return. Errors: StoreUnavailable."""
        self._owner.cleaned_offsets.note(self._partition, offset)
        await self._owner.cleaned_offsets.save()

    def _rename_deleted(self, bases: Sequence[int]) -> list[str]:
        there, renamed = set(self.folder.list()), []
        for base in bases:
            for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT):
                name = file_name(base, suffix)
                if name in there:
                    self.folder.rename(name, name + DELETED)
                    renamed.append(name + DELETED)
        self.folder.sync()
        return renamed

    async def finish(self, indexes: IndexFiles, end_offset: int, snapshot: bytes) -> None:
        """A clean end: the next open reads no data. Errors: StoreUnavailable, after which it trusts
        what was synced alone."""
        try:
            await self.run(self.files.finish, indexes, end_offset, snapshot)
        except StoreUnavailable:
            self.failed()
            raise
        self._owner.recovery_points.note(self._partition, end_offset)
        self._owner.high_watermarks.note(self._partition, end_offset)
        self._owner.save_soon()

    def failed(self) -> None:
        """The log has failed: its next open trusts what was synced alone, by a write that is under
        way, too."""
        self._has_failed = True

    async def close(self) -> None:
        """Nothing of this log changes the files on return."""
        await self.offload.run(Lane.FILES, self.files.close)
        if self._has_failed:
            self._has_failed = False
            self._owner.distrust(self._partition, self, self.files.synced)
        self._owner.closed(self._partition, self)

    async def delete(self) -> None:
        """Call it when the files are closed. Errors: StoreUnavailable."""
        await self._remove()

    async def run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Calls `work` off the loop. Errors: StoreUnavailable, where it raises an OSError."""
        with self.writes.checked(str(self._partition)):
            try:
                return await self.offload.run(Lane.FILES, work, *arguments)
            except OSError as error:
                doing = f"writing {self._partition}"
                raise typed_os_error(error, str(self.folder), doing, StoreUnavailable) from error
