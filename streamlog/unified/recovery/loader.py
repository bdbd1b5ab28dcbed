"""Makes the state of a unified log from its folder, as a crash or Kafka left it.

1. Leftovers go: files about to be deleted, cleanings that were not finished; a finished one takes
   its place (`.swap`).
2. A segment below the recovery point is trusted: its end is the next one's beginning, its largest
   timestamp the last of its time index. Where an index is missing or unsound it is made anew.
3. The segment with the recovery point, and each one behind it, is read from there on: CRC,
   offsets, indexes made anew. It is cut at the first byte that belongs to no sound batch, and what
   follows it is removed: no appends are acknowledged before all before them are synced.
4. Producers come from the newest sound snapshot, the last batches before it (`remembered.py`) and
   those behind it, leader epochs from their checkpoint and the batches that were read.
5. Aborted transactions before that snapshot, where they are unsound, come from an older one and the
   batches behind it, which say nothing of the producers: a cleaning may have removed markers since.

It blocks: call it through Offload. It ends with everything durable. Source: Kafka's LogLoader,
LogSegment.recover.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streamlog.codec.control import decode_end_marker
from streamlog.errors import Corrupt, StreamlogError
from streamlog.format.kafka_files import offset_index, time_index
from streamlog.format.kafka_files.checkpoints import decode_epochs, encode_epochs
from streamlog.format.kafka_files.names import (
    CLEANED,
    DELETED,
    LEADER_EPOCHS,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TXN_INDEX,
    file_name,
    parse_file_name,
)
from streamlog.format.kafka_files.transaction_index import (
    AbortedTxn,
    decode_aborted,
    encode_aborted,
)
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.partition.batch_metadata import LogBatchMetadata
from streamlog.log.partition.leader_epoch_cache import LeaderEpochCache
from streamlog.log.partition.producer_state_manager import ProducerLimits, ProducerStateManager
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.growing import GrowingFile, GrowingFolder
from streamlog.unified.disk.files import keep_same, read_if_there, remove_if_there, write_new
from streamlog.unified.disk.log_files import GROUP_BYTES, SyncedTo
from streamlog.unified.recovery.aborted_check import AbortedCheck, is_sound
from streamlog.unified.recovery.ended_transactions import without_ended
from streamlog.unified.recovery.remembered import recall
from streamlog.unified.recovery.scan import FoundBatch, batches, header_at, holds_time
from streamlog.unified.recovery.snapshots import (
    FoundSnapshot,
    newest_snapshot,
    remove_others,
    snapshot_offsets,
)
from streamlog.unified.state.segment import UnifiedLogSegment
from streamlog.unified.token_file import TOKEN, decode_token

log = logging.getLogger(__name__)


class LoadPlan(NamedTuple):
    """What is known of a partition besides its folder. Offsets of 0: nothing.

    `now_ms`: no file was changed later. `synced`: what a failed log of this process knew to be
    durable; all behind it in that segment is cut off. `clean_end_offset`: how far cleanings came;
    -1: the log was never cleaned. `before_segment` is called before each one that is read: what it
    raises ends the load.
    """

    recovery_point: int
    log_start_offset: int
    now_ms: int
    config: TopicConfig
    limits: ProducerLimits
    synced: SyncedTo | None = None
    accepts_data_loss: bool = False
    clean_end_offset: int = -1
    before_segment: Callable[[], None] = lambda: None


@dataclass(slots=True)
class LoadedLog:
    """A log as its folder says; all of it is durable. `cut_bytes` were removed from its end."""

    segments: list[UnifiedLogSegment]
    producers: ProducerStateManager
    epochs: LeaderEpochCache
    log_start_offset: int
    fencing_token: bytes = b""
    cut_bytes: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Offsets [first, end) between the batches of two segments: a cleaning removed them, or a
    segment is missing. None before the recovery point."""
    removed: list[str] = field(default_factory=list)
    """Files that were left over and are gone."""


def load(folder: GrowingFolder, plan: LoadPlan) -> LoadedLog:
    """Errors: Corrupt (what was durable is not there; nothing was changed in that segment),
    OSError."""
    return LogLoader(folder, plan).load()


class LogLoader:
    def __init__(self, folder: GrowingFolder, plan: LoadPlan) -> None:
        self._folder = folder
        self._plan = plan
        self._loaded = LoadedLog(
            [], ProducerStateManager(plan.limits), LeaderEpochCache(), plan.log_start_offset
        )
        self._is_changed = False
        self._unsound: set[int] = set()
        """First offsets of the segments whose transaction index is made anew."""
        self._is_epoch_missing = False
        """Whether batches have a leader epoch that the checkpoint has not."""

    def load(self) -> LoadedLog:
        loaded, plan = self._loaded, self._plan
        self._settle_leftovers()
        bases = self._bases()
        if not bases:
            self._folder.create(file_name(plan.log_start_offset, LOG)).close()
            bases = [plan.log_start_offset]
            self._is_changed = True
        self._read_epochs()
        self._read_token()
        self._segments(bases)
        self._check_aborted()
        end = loaded.segments[-1].end
        loaded.log_start_offset = plan.log_start_offset
        if not plan.config.remote_storage_enable:
            # With a remote tier the log may begin before its first segment here.
            loaded.log_start_offset = max(plan.log_start_offset, loaded.segments[0].base_offset)
        if loaded.log_start_offset > end:
            # The checkpoint is ahead of data that was lost: the log begins where it ends.
            loaded.log_start_offset = end
        loaded.epochs.truncate_end(end)
        loaded.epochs.raise_start(loaded.log_start_offset)
        if self._is_epoch_missing:
            # The next open trusts what this one has read.
            self._write(LEADER_EPOCHS, encode_epochs(loaded.epochs.entries))
            self._is_changed = True
        self._producers(end)
        kept = [segment.base_offset for segment in loaded.segments]
        remove_others(self._folder, kept, end)
        if self._is_changed:
            self._folder.sync()
        return loaded

    # Leftovers

    def _settle_leftovers(self) -> None:
        names = self._folder.list()
        swaps: list[int] = []
        for name in names:
            found = parse_file_name(name)
            if found is None:
                if name.endswith(".tmp"):
                    self._remove(name)
                continue
            offset, suffix, state = found
            if state in (DELETED, CLEANED):
                self._remove(name)
            elif state == SWAP and suffix == LOG:
                swaps.append(offset)
        for offset in sorted(swaps):
            self._swap_in(offset)
        for name in self._folder.list():
            if name.endswith(SWAP):
                self._remove(name)

    def _swap_in(self, base_offset: int) -> None:
        """Puts a cleaned segment in the place of those that it covers, as Kafka's loader does."""
        file = self._folder.open(file_name(base_offset, LOG) + SWAP)
        try:
            end = base_offset
            for batch in batches(file, 0, base_offset, verify=False):
                end = batch.header.next_offset
        finally:
            file.close()
        for offset in self._log_bases():
            if base_offset <= offset < max(end, base_offset + 1):
                self._remove_segment(offset)
        # The .log last, as long as it waits, another crash ends here again.
        for suffix in reversed(SEGMENT_SUFFIXES):
            name = file_name(base_offset, suffix)
            if name + SWAP in self._folder.list():
                self._folder.rename(name + SWAP, name)
        self._folder.sync()

    def _log_bases(self) -> list[int]:
        """First offsets of the segments that are there."""
        found = [parse_file_name(name) for name in self._folder.list()]
        return sorted(one[0] for one in found if one is not None and one[1:] == (LOG, ""))

    def _bases(self) -> list[int]:
        """First offsets of the segments, once the leftovers are gone. Index files without a segment
        go."""
        bases = self._log_bases()
        found = [parse_file_name(name) for name in self._folder.list()]
        for one in found:
            if one is not None and one[1] in SEGMENT_SUFFIXES and one[0] not in bases:
                self._remove(file_name(one[0], one[1]) + one[2])
        return bases

    def _remove(self, name: str) -> None:
        remove_if_there(self._folder, name)
        self._loaded.removed.append(name)
        self._is_changed = True

    def _remove_segment(self, base_offset: int) -> None:
        # The .log last: as long as it is there another crash ends here again.
        for suffix in reversed(SEGMENT_SUFFIXES):
            remove_if_there(self._folder, file_name(base_offset, suffix))
        self._is_changed = True

    # Segments

    def _segments(self, bases: Sequence[int]) -> None:
        loaded = self._loaded
        for number, base in enumerate(bases):
            self._plan.before_segment()
            following = bases[number + 1] if number + 1 < len(bases) else None
            segment = UnifiedLogSegment(base)
            file = self._folder.open(segment.log_name)
            try:
                if following is not None and following <= self._plan.recovery_point:
                    self._trusted(segment, file, following)
                    loaded.segments.append(segment)
                    continue
                cut = self._recover(segment, file)
            finally:
                file.close()
            loaded.segments.append(segment)
            if following is None:
                break
            # A cleaned segment may end before the next one begins, where nothing was cut.
            if cut or segment.end > following:
                self._drop_behind(bases[number + 1 :])
                break
            if segment.end < following:
                loaded.gaps.append((segment.end, following))
            segment.end = following
            self._seal(segment)

    def _changed_ms(self, segment: UnifiedLogSegment) -> int:
        """When its file was changed last, as far as that is known: no batch of it came later. By it
        a segment without timestamps expires, as in Kafka."""
        return min(self._plan.now_ms, self._written_ms(segment.log_name))

    def _written_ms(self, name: str) -> int:
        path = self._folder.path_of(name)
        return self._plan.now_ms if path is None else path.stat().st_mtime_ns // 1_000_000

    def _trusted(self, segment: UnifiedLogSegment, file: GrowingFile, end: int) -> None:
        offsets = read_if_there(self._folder, segment.index_name)
        times = read_if_there(self._folder, segment.time_index_name)
        span, size = end - segment.base_offset, file.size()
        if (
            offsets is None
            or times is None
            or offset_index.sound_prefix(offsets, span, max(size, 1)) != len(offsets)
            or time_index.sound_times(times, span) != len(times)
            or not self._is_time_true(segment, file, offsets, times)
        ):
            log.warning(
                "the indexes of the segment %s are made anew: they are missing or unsound",
                segment.log_name,
            )
            self._read_from(segment, file, 0, segment.base_offset)
            segment.last_append = self._changed_ms(segment)
            segment.end = end
            self._seal(segment)
            return
        segment.restore(bytearray(), bytearray(times))
        segment.size, segment.end, segment.is_sealed = size, end, True
        segment.last_append = self._changed_ms(segment)
        first = header_at(file, 0)
        segment.first_timestamp = -1 if first is None else first.max_timestamp_ms
        segment.drop_indexes()

    def _is_time_true(
        self, segment: UnifiedLogSegment, file: GrowingFile, offsets: bytes, times: bytes
    ) -> bool:
        """Whether a batch has the largest timestamp: look-ups pass over the segment by it."""
        last = time_index.last_entry(times)
        if last == time_index.NONE:
            first = header_at(file, 0)
            return first is None or first.max_timestamp_ms < 0
        entry = offset_index.floor_entry(offsets, last.relative_offset)
        position = 0 if entry is None else entry.position
        offset = self._absolute(segment, last.relative_offset)
        return holds_time(file, position, offset, last.timestamp_ms)

    def _recover(self, segment: UnifiedLogSegment, file: GrowingFile) -> int:
        """Reads the segment from the recovery point on; returns how many bytes it cut off."""
        synced, size = self._plan.synced, file.size()
        if synced is not None and synced.base_offset == segment.base_offset:
            size = min(synced.size_bytes, size)
        position, next_offset = self._index_below_recovery_point(segment, file)
        self._read_aborted(segment)
        self._read_from(segment, file, position, next_offset, size)
        return self._cut(segment, file, segment.size)

    def _index_below_recovery_point(
        self, segment: UnifiedLogSegment, file: GrowingFile
    ) -> tuple[int, int]:
        """Takes the index entries up to the recovery point; where to read on, at which offset."""
        trusted = self._plan.recovery_point - segment.base_offset
        if trusted <= 0:
            return 0, segment.base_offset
        offsets = read_if_there(self._folder, segment.index_name)
        times = read_if_there(self._folder, segment.time_index_name)
        if not offsets or times is None:
            return 0, segment.base_offset
        whole = offset_index.sound_prefix(offsets, trusted, max(file.size(), 1))
        if not whole:
            return 0, segment.base_offset
        kept = bytearray(offsets[:whole])
        last = offset_index.entry_at(kept, whole // offset_index.ENTRY_BYTES - 1)
        first = header_at(file, 0)
        found = next(batches(file, last.position, segment.base_offset, verify=True), None)
        if (
            first is None
            or found is None
            or found.header.last_offset != self._absolute(segment, last.offset)
        ):
            return 0, segment.base_offset
        # The last entry is made anew with its batch, which tells where the next one is due.
        del kept[-offset_index.ENTRY_BYTES :]
        below = found.header.base_offset - segment.base_offset
        segment.restore(kept, bytearray(times[: time_index.sound_times(times, below)]))
        segment.first_timestamp = first.max_timestamp_ms
        segment.size = last.position
        segment.bytes_since_indexed = self._plan.config.index_interval_bytes + 1
        return last.position, found.header.base_offset

    def _absolute(self, segment: UnifiedLogSegment, relative: int) -> int:
        return segment.base_offset + relative

    def _read_aborted(self, segment: UnifiedLogSegment) -> None:
        """Takes the aborted transactions below the recovery point."""
        entries = self._stored_aborted(segment)
        point = self._plan.recovery_point
        segment.aborted = [entry for entry in entries if entry.last_offset < point]
        if len(segment.aborted) < len(entries):
            self._distrust_aborted(segment, "it goes on behind the recovery point")

    def _stored_aborted(self, segment: UnifiedLogSegment) -> list[AbortedTxn]:
        """None of a file that is damaged, which is made anew."""
        name = file_name(segment.base_offset, TXN_INDEX)
        try:
            return decode_aborted(read_if_there(self._folder, name) or b"")
        except StreamlogError as error:
            self._distrust_aborted(segment, str(error))
            return []

    def _distrust_aborted(self, segment: UnifiedLogSegment, why: str) -> None:
        base = segment.base_offset
        log.warning("%s is made anew: %s", file_name(base, TXN_INDEX), why)
        self._unsound.add(base)
        if segment.aborted is not None:
            segment.aborted = []

    def _check_aborted(self) -> None:
        """Compares the aborted transactions of all segments with their batches."""
        segments = self._loaded.segments
        check, floor, seen = AbortedCheck(self._folder, segments), 0, segments[0]
        for segment in segments:
            entries = segment.aborted
            if entries is None:
                entries = self._stored_aborted(segment)
            if not entries or segment.base_offset in self._unsound:
                continue
            if not is_sound(entries, segment.base_offset, segment.end, floor):
                # A last stable offset before them may be the one that is wrong.
                self._distrust_aborted(seen, "its entries contradict those of a later segment")
                self._distrust_aborted(segment, "its entries contradict one another")
            elif not all(check.is_true(entry) for entry in entries):
                self._distrust_aborted(segment, "an entry is of no aborted transaction")
            else:
                floor, seen = entries[-1].last_stable_offset, segment

    def _read_from(
        self,
        segment: UnifiedLogSegment,
        file: GrowingFile,
        position: int,
        next_offset: int,
        size: int | None = None,
    ) -> None:
        """Accounts for the sound batches from the position on, of as many bytes (None: all)."""
        config, epochs = self._plan.config, self._loaded.epochs
        point = self._plan.recovery_point if position else -1
        changed_ms = self._changed_ms(segment)
        for batch in batches(file, position, next_offset, verify=True, end=size):
            header = batch.header
            if header.last_offset - segment.base_offset > (1 << 31) - 1:
                break
            if segment.end < point <= header.base_offset:
                break  # No CRC covers an offset; the one before the recovery point is in a batch.
            # Behind a cleaning, offsets may leave gaps between batches.
            span = header.last_offset_delta + 1
            metadata = self._metadata(batch, changed_ms)
            if metadata is None:
                break
            segment.account(header.base_offset, span, metadata, config.index_interval_bytes)
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
                self._is_epoch_missing = True
        segment.largest_visible = segment.largest

    def _metadata(self, batch: FoundBatch, append_time_ms: int) -> LogBatchMetadata | None:
        """None for a control batch that cannot be read."""
        header, marker = batch.header, None
        stamp = header.max_timestamp_ms
        if not header.record_count:
            stamp = -1  # No look-up by time finds what a cleaning left of it.
            if header.is_control:
                # Its transaction is gone: for producers it says nothing, in Kafka's replay neither.
                header = header._replace(producer_id=-1)
        elif header.is_control:
            try:
                marker = decode_end_marker(batch.view)
            except StreamlogError:
                return None
        return LogBatchMetadata.of(
            header,
            leader_epoch=header.leader_epoch,
            append_time_ms=append_time_ms,
            max_timestamp_ms=stamp,
            marker=marker,
        )

    def _cut(self, segment: UnifiedLogSegment, file: GrowingFile, size: int) -> int:
        self._check_durable(segment, file)
        cut = self._truncate(segment, file, size)
        self._make_durable(segment, file)
        return cut

    def _make_durable(self, segment: UnifiedLogSegment, file: GrowingFile) -> None:
        """Bytes that were only in the page cache when the process died are durable from here on.

        Its last sync may have failed: what it had written since the one before is readable, and a
        sync passes over it. That is the last group at most, because a log ends with a failed sync.
        """
        if segment.end > self._plan.recovery_point:
            unsure = max(GROUP_BYTES, self._plan.config.max_message_bytes)
            file.write_again(max(0, segment.size - unsure))
        file.sync()

    def _truncate(self, segment: UnifiedLogSegment, file: GrowingFile, size: int) -> int:
        left = file.size() - size
        if left:
            log.warning(
                "the segment %s was cut at byte %d: %d bytes behind it are no sound batch",
                segment.log_name,
                size,
                left,
                extra={"cut_bytes": left, "position": size},
            )
            file.truncate(size)
            self._loaded.cut_bytes += left
        return left

    def _check_durable(self, segment: UnifiedLogSegment, file: GrowingFile) -> None:
        """Below the recovery point nothing may be missing. Errors: Corrupt (nothing was cut)."""
        point = self._plan.recovery_point
        if segment.end >= point or self._plan.accepts_data_loss:
            return
        raise Corrupt(
            f"{segment.log_name} holds sound batches up to offset {segment.end} (byte "
            f"{segment.size} of {file.size()}), and offsets up to {point} were durable: offsets "
            f"{segment.end} to {point - 1} are lost. Put the file back from a copy, or start once "
            "with --accept-data-loss, which gives them up",
            object_key=segment.log_name,
            start=segment.size,
            end=file.size(),
        )

    def _drop_behind(self, bases: Sequence[int]) -> None:
        for base in bases:
            log.warning(
                "the segment %s was removed: the one before it had to be cut",
                file_name(base, LOG),
            )
            self._remove_segment(base)

    def _seal(self, segment: UnifiedLogSegment) -> None:
        """Writes the indexes of a segment that is not the active one."""
        segment.seal()
        assert segment.offsets is not None
        assert segment.times is not None
        self._write(segment.index_name, segment.offsets)
        self._write(segment.time_index_name, segment.times)
        if segment.aborted:
            name = file_name(segment.base_offset, TXN_INDEX)
            self._write(name, encode_aborted(segment.aborted))
        segment.drop_indexes()
        self._is_changed = True

    def _write(self, name: str, data: Buffer) -> None:
        """A new file, unless the one that is there says the same: it stays then, and is durable."""
        if not keep_same(self._folder, name, data):
            write_new(self._folder, name, data)

    # What batches made

    def _read_epochs(self) -> None:
        data = read_if_there(self._folder, LEADER_EPOCHS)
        if data is None:
            return
        try:
            entries = decode_epochs(LEADER_EPOCHS, data)
        except StreamlogError as error:
            log.warning("leader epochs are taken from the batches: %s", error)
            return
        for epoch, offset in entries:
            self._loaded.epochs.assign(epoch, offset)

    def _read_token(self) -> None:
        """Errors: Corrupt, UnsupportedVersion."""
        data = read_if_there(self._folder, TOKEN)
        if data is None:
            return
        try:
            self._loaded.fencing_token = decode_token(f"{self._folder}/{TOKEN}", data)
        except Corrupt as error:
            if not self._plan.accepts_data_loss:
                raise
            log.warning("the fencing token is given up: %s", error)

    def _producers(self, end: int) -> None:
        """Batches behind the snapshot change the producers, and say what transactions aborted."""
        loaded, bound = self._loaded, end
        if end > self._plan.recovery_point:
            # That of the first segment was durable before the segment was there.
            bound = max(self._plan.recovery_point, loaded.segments[0].base_offset)
        is_active_unsound = loaded.segments[-1].base_offset in self._unsound
        start, came_ms = self._restore(loaded.producers, bound)
        if self._unsound and min(self._unsound) < start:
            self._aborted_before(start)
        for segment in loaded.segments:
            if segment.end > start and (segment.size or segment.base_offset in self._unsound):
                came_ms = max(came_ms, self._changed_ms(segment))
                aborted = self._replay(loaded.producers, segment, came_ms, start)
                self._take_aborted(segment, aborted, start)
        if is_active_unsound:
            self._keep_aborted(loaded.segments[-1])

    def _restore(self, producers: ProducerStateManager, bound: int) -> tuple[int, int]:
        """Takes the producers of the newest sound snapshot up to the bound; its offset, and the
        time of the newest append that it tells of."""
        folder, segments, start = self._folder, self._loaded.segments, self._loaded.log_start_offset
        offsets = [one for one in snapshot_offsets(folder.list()) if one <= bound]
        found = newest_snapshot(folder, offsets, segments[0].base_offset, segments[-1].end)
        found, newest_ms = self._believed(found)
        entries = without_ended(folder, segments, found, start, self._plan.clean_end_offset)
        most = self._plan.limits.batches_remembered
        producers.restore(recall(folder, segments, entries, found.offset, most, newest_ms))
        return found.offset, max((entry.last_append_ms for entry in entries), default=0)

    def _believed(self, found: FoundSnapshot) -> tuple[FoundSnapshot, int]:
        """The snapshot without times that cannot be, and the newest append up to now that it tells
        of: as old as it may be, because an older one means that more is read back.

        A Kafka takes the records' times, which clients choose. A time that is later than the open
        and than the file counts as the later one of these: its producer would never be forgotten.
        A time before the file was written is believed, although the clock may have been ahead
        then: it may also be behind now.
        """
        if not found.entries:
            return found, 0
        now_ms = self._plan.now_ms
        latest_ms = max(now_ms, self._written_ms(file_name(found.offset, SNAPSHOT)))
        times = (entry.last_append_ms for entry in found.entries)
        newest_ms = max((time for time in times if time <= now_ms), default=now_ms)
        entries = [
            entry if entry.last_append_ms <= latest_ms else entry._replace(last_append_ms=latest_ms)
            for entry in found.entries
        ]
        return found._replace(entries=entries), newest_ms

    def _aborted_before(self, stop: int) -> None:
        """Makes the unsound lists of aborted transactions anew, up to that offset. Its producers
        are not kept: when their batches came does not matter."""
        producers = ProducerStateManager(self._plan.limits)
        start, came_ms = self._restore(producers, min(self._unsound))
        for segment in self._loaded.segments:
            if segment.end <= start or segment.base_offset >= stop:
                continue
            aborted = self._replay(producers, segment, came_ms, start, stop)
            if segment.base_offset in self._unsound:
                self._take_aborted(segment, aborted, start)
                self._unsound.discard(segment.base_offset)

    def _replay(
        self,
        producers: ProducerStateManager,
        segment: UnifiedLogSegment,
        came_ms: int,
        start: int,
        stop: int = 1 << 63,
    ) -> list[AbortedTxn]:
        """Accounts for the segment's batches that begin in [start, stop); what they aborted.

        They are taken to have come at `came_ms`, that of the file's last change: then or before. A
        producer that is forgotten too early has its retries stored twice, and records may be far
        older than their append.
        """
        aborted: list[AbortedTxn] = []
        file = self._folder.open(segment.log_name)
        try:
            end = 0
            for batch in batches(file, 0, segment.base_offset, verify=True):
                end = batch.position + batch.header.size_bytes
                if not start <= batch.header.base_offset < stop or batch.header.producer_id < 0:
                    continue
                metadata = self._metadata(batch, came_ms)
                if metadata is None:
                    end = batch.position
                    break
                span = batch.header.last_offset_delta + 1
                found = producers.account(batch.header.base_offset, span, metadata)
                if found is not None:
                    aborted.append(found)
        finally:
            file.close()
        if end < segment.size and not self._plan.accepts_data_loss:
            raise self._damaged(segment, end)
        return aborted

    def _damaged(self, segment: UnifiedLogSegment, position: int) -> Corrupt:
        return Corrupt(
            f"{segment.log_name} holds no sound batch at byte {position} of {segment.size}, all of "
            "which was durable, and what producers and transactions did there is not known: put "
            "the file back from a copy, or start once with --accept-data-loss, which goes on "
            "without",
            object_key=segment.log_name,
            start=position,
            end=segment.size,
        )

    def _take_aborted(
        self, segment: UnifiedLogSegment, aborted: Sequence[AbortedTxn], start: int
    ) -> None:
        if segment.aborted is not None:
            kept = [entry for entry in segment.aborted if entry.last_offset < start]
            segment.aborted = kept + list(aborted)
        elif aborted or segment.base_offset in self._unsound:
            name = file_name(segment.base_offset, TXN_INDEX)
            before: list[AbortedTxn] = []
            if segment.base_offset not in self._unsound:
                stored = decode_aborted(read_if_there(self._folder, name) or b"")
                before = [one for one in stored if one.last_offset < start]
            write_new(self._folder, name, encode_aborted([*before, *aborted]))
            self._is_changed = True

    def _keep_aborted(self, segment: UnifiedLogSegment) -> None:
        """Writes the active segment's file anew, where an unsound one lies: the next open takes
        from it what is below the recovery point, and a roll with an empty list leaves it there."""
        name = file_name(segment.base_offset, TXN_INDEX)
        if segment.aborted:
            write_new(self._folder, name, encode_aborted(segment.aborted))
        else:
            remove_if_there(self._folder, name)
        self._is_changed = True
