"""LogFolder: the folder that holds all unified logs of a node, laid out as a Kafka broker's.

Whose it is stands in meta.properties. Each partition has a folder of its own, whose
partition.metadata has the topic's id: a folder of another topic of the same name is put aside
(`-stray`), never read and never deleted. A partition that goes is renamed (`-delete`) first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import NamedTuple, TypeVar, TypeVarTuple
from uuid import UUID

from streamlog.errors import (
    Corrupt,
    ForeignCluster,
    StoreUnavailable,
    StreamlogError,
)
from streamlog.format.kafka_files.names import (
    CLEAN_SHUTDOWN,
    CLEANED_OFFSETS,
    DELETE_FOLDER,
    HIGH_WATERMARKS,
    INDEX,
    LEADER_EPOCHS,
    LOG,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SNAPSHOT,
    STRAY_FOLDER,
    TIME_INDEX,
    file_name,
    folder_name,
    parse_folder_name,
    renamed_folder,
)
from streamlog.format.kafka_files.properties import (
    MetaProperties,
    decode_meta_properties,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_meta_properties,
    encode_partition_metadata,
)
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.partition.producer_state_manager import ProducerLimits
from streamlog.model.kv import KVClient
from streamlog.model.partition import TopicPartition
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.cancellation import to_its_end
from streamlog.runtime.concurrency.keyed_lock import KeyedLock
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.runtime.disk.tree import FolderTree
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.progress import Due
from streamlog.unified.adopted_copy import AdoptedLog, IsStopped, make_copy
from streamlog.unified.adoption import FoundPartition
from streamlog.unified.disk.checkpoint_files import OffsetCheckpoint
from streamlog.unified.disk.files import (
    TEMPORARY,
    has_folders,
    read_if_there,
    remove_if_there,
    replace_file,
)
from streamlog.unified.disk.folder_writes import FolderWrites
from streamlog.unified.disk.log_files import LogFiles, SyncedTo
from streamlog.unified.folder_record import (
    STAMP,
    FolderRecord,
    decode_record,
    decode_stamp,
    doubt_of,
    encode_record,
    encode_stamp,
    record_key,
)
from streamlog.unified.partition_folder import PartitionFolder
from streamlog.unified.read.kept_files import KeptFiles
from streamlog.unified.recovery.loader import LoadedLog, LoadPlan, load
from streamlog.unified.token_file import TOKEN

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def _with_temporary(*names: str) -> frozenset[str]:
    return frozenset((*names, *(name + TEMPORARY for name in names)))


_OF_A_CREATION = _with_temporary(PARTITION_METADATA)
_BESIDE_A_LOG = (
    LEADER_EPOCHS,
    TOKEN,
    *(file_name(0, one) for one in (INDEX, TIME_INDEX, SNAPSHOT)),
)
_WITHOUT_RECORDS = _OF_A_CREATION | {file_name(0, LOG)} | _with_temporary(*_BESIDE_A_LOG)
"""Of a partition, also a Kafka's, that was opened and never written to."""


@dataclass(frozen=True, slots=True)
class FolderOwner:
    """Whose logs a folder holds."""

    cluster_id: str
    node_id: int


class _Copy(NamedTuple):
    """A partition that was adopted, in a folder that no partition has as its own yet."""

    topic_id: UUID
    name: str
    is_source_in_place: bool
    """The folder that it was copied from has the partition's name here; it may be a link."""
    was_cleaned: bool
    log: AdoptedLog


class LogFolder:
    """Made by `open`, ended by `close`. Paths come from names that were checked."""

    def __init__(
        self,
        tree: FolderTree,
        owner: FolderOwner,
        environment: LogEnvironment,
        offload: Offload,
        *,
        accepts_data_loss: bool = False,
    ) -> None:
        self.accepts_data_loss = accepts_data_loss
        self.environment = environment
        self.offload = offload
        self.writes = writes = FolderWrites(environment.clock)
        self.kept_files = KeptFiles()
        self.recovery_points = OffsetCheckpoint(RECOVERY_POINTS, tree.top, offload, writes)
        self.log_starts = OffsetCheckpoint(LOG_STARTS, tree.top, offload, writes)
        self.high_watermarks = OffsetCheckpoint(HIGH_WATERMARKS, tree.top, offload, writes)
        self.cleaned_offsets = OffsetCheckpoint(CLEANED_OFFSETS, tree.top, offload, writes)
        self._checkpoints = (
            self.recovery_points,
            self.log_starts,
            self.high_watermarks,
            self.cleaned_offsets,
        )
        self._tree = tree
        self._owner = owner
        self._background = Background(f"log folder {tree}", self._task_failed)
        self._topic_ids: dict[TopicPartition, UUID] = {}
        """The partitions that have a folder."""
        self._aside: set[UUID] = set()
        """Topics of which a partition was put aside."""
        self._turns = KeyedLock[TopicPartition]()
        """A folder is made, put aside and removed by one call at a time: a topic that is deleted
        and one of the same name that is created have one name for it."""
        self._claimed: dict[TopicPartition, UUID] = {}
        """Those that a topic's record names, though it may have come after the orphans were
        listed."""
        self._distrusted: dict[TopicPartition, SyncedTo] = {}
        self._in_use: dict[TopicPartition, PartitionFolder] = {}
        """Those whose files are open, of logs that may have failed."""
        self._is_saving = False
        self._copies: dict[TopicPartition, _Copy] = {}
        """Adopted partitions whose topics are created next."""
        self.adopting = asyncio.Lock()
        """Held by an adoption, from its look at the topics to its end: the copies are its own."""
        self.directory_id = UUID(int=0)
        self.doubt: str | None = None
        """Why the folder may not be the one that the node used last."""
        self._has_refused = False

    def __str__(self) -> str:
        return str(self._tree)

    @classmethod
    async def open(
        cls,
        tree: FolderTree,
        owner: FolderOwner,
        environment: LogEnvironment,
        offload: Offload,
        *,
        kv: KVClient | None = None,
        accepts_data_loss: bool = False,
    ) -> LogFolder:
        """The caller holds the folder's lock. `kv` remembers which folder it is.
        `accepts_data_loss`: a log that ends before what was durable, or lies in another folder than
        the node used last, is opened as it is.

        Errors: ForeignCluster, Corrupt, UnsupportedVersion, StoreUnavailable.
        """
        folder = cls(tree, owner, environment, offload, accepts_data_loss=accepts_data_loss)
        await folder._identify()
        for checkpoint in folder._checkpoints:
            await checkpoint.load()
        await folder._run(folder._look_around)
        if kv is not None:
            await folder._compare(kv)
        return folder

    async def _compare(self, kv: KVClient) -> None:
        """Whether it is the folder that the node used last; both remember it from now on.

        The folder's stamp is written first: a crash between leaves one that is too new.
        """
        key = record_key(self._owner.node_id)
        data = await self._run(read_if_there, self._tree.top, STAMP)
        found = FolderRecord(self.directory_id, self._stamp(data))
        value = await kv.get_kv(key)
        known = None if value is None else decode_record(value.data)
        self.doubt = doubt_of(known, found, str(self._tree))
        if self.doubt is not None:
            log.warning("%s", self.doubt)
            if not self.accepts_data_loss:
                return
            self.doubt = None
        stamp = max(found.stamp, 0 if known is None else known.stamp) + 1
        await self._run(replace_file, self._tree.top, STAMP, encode_stamp(stamp))
        await kv.put_kv(key, encode_record(FolderRecord(self.directory_id, stamp)))

    @staticmethod
    def _stamp(data: bytes | None) -> int:
        """A damaged one may be of any start, so that it counts as the oldest: the folder is doubted
        then, and other topics are served."""
        try:
            return 0 if data is None else decode_stamp(data)
        except Corrupt as error:
            log.warning("%s", error)
            return 0

    @property
    def alarm(self) -> str | None:
        """Why partitions are refused; None where none was."""
        return self.doubt if self._has_refused else None

    def progress(self, failing_after_s: float) -> Due | None:
        """A check: what the disk refuses, else the write that has been under way for longest."""
        return self._named(self.writes.failing(failing_after_s) or self.writes.progress())

    def full_disk(self) -> Due | None:
        """As FolderWrites.full."""
        return self._named(self.writes.full())

    def _named(self, due: Due | None) -> Due | None:
        return due and due._replace(waits_for=f"in the log folder {self._tree}: {due.waits_for}")

    async def _identify(self) -> None:
        data = await self._run(read_if_there, self._tree.top, META_PROPERTIES)
        owner = self._owner
        if data is not None:
            found = decode_meta_properties(f"{self._tree}/{META_PROPERTIES}", data)
            if (found.cluster_id, found.node_id) == (owner.cluster_id, owner.node_id):
                self.directory_id = found.directory_id
                return
            if await self._run(self._holds_partitions):
                raise ForeignCluster(
                    f"the log folder {self._tree} is of node {found.node_id} of cluster "
                    f"{found.cluster_id}, and this is node {owner.node_id} of cluster "
                    f"{owner.cluster_id}: give each node a folder of its own; a stopped Kafka's "
                    "topics are taken over by `streamlog topic adopt`"
                )
            # Every node with a data folder makes one, also where no topic ever needs it.
            log.info("the log folder %s was node %d's, and is empty", self._tree, found.node_id)
        self.directory_id = self.environment.random.uuid()
        made = MetaProperties(owner.cluster_id, owner.node_id, self.directory_id)
        content = encode_meta_properties(made)
        await self._run(replace_file, self._tree.top, META_PROPERTIES, content)

    def _holds_partitions(self) -> bool:
        """Also ones that were put aside, or whose removal was begun."""
        suffixes = (DELETE_FOLDER, STRAY_FOLDER)
        folders = self._tree.folders()
        return any(name.endswith(suffixes) or parse_folder_name(name) for name in folders)

    def _look_around(self) -> None:
        remove_if_there(self._tree.top, CLEAN_SHUTDOWN)
        self._tree.top.sync()
        for name in self._tree.folders():
            try:
                self._look_at(name)
            except (StreamlogError, OSError) as error:
                # One folder that cannot be read or removed is no reason to serve none.
                log.warning("the folder %s is left alone: %s", name, error)

    def _look_at(self, name: str) -> None:
        """Errors: Corrupt, UnsupportedVersion, OSError."""
        if name.endswith(DELETE_FOLDER):
            self._tree.remove(name)
            return
        partition = parse_folder_name(name)
        if partition is None and not name.endswith(STRAY_FOLDER):
            return
        data = read_if_there(self._tree.open(name), PARTITION_METADATA)
        path = f"{self._tree}/{name}/{PARTITION_METADATA}"
        topic_id = decode_partition_metadata(path, data or b"")
        if partition is None:
            self._aside.add(topic_id)
        else:
            self._topic_ids[partition] = topic_id

    # Partitions

    def topic_id_of(self, partition: TopicPartition) -> UUID | None:
        """None: it has no folder here."""
        return self._topic_ids.get(partition)

    def partitions(self) -> Iterator[tuple[TopicPartition, UUID]]:
        yield from tuple(self._topic_ids.items())

    async def create(self, partition: TopicPartition, topic_id: UUID) -> bool:
        """An empty partition, or the adopted one; durable on return. What has its name, of another
        topic id or copied by the adoption, is put aside. False: it was there already.

        Errors: StoreUnavailable.
        """
        async with self._turns.holding(partition):
            copy = self._copies.get(partition)
            if copy is not None and copy.topic_id != topic_id:
                copy = None
            if copy is None and self._topic_ids.get(partition) == topic_id:
                return False
            if copy is not None and copy.is_source_in_place:
                await self._put_aside(partition)
            else:
                await self._make_room(partition, topic_id)
            for checkpoint in self._checkpoints:
                checkpoint.forget(partition)
            if copy is not None:
                self._note_copy(partition, copy)
            for checkpoint in self._checkpoints:
                await checkpoint.save()
            if copy is None:
                await self._run(self._make, partition, topic_id)
            else:
                await self._run(self._tree.rename, copy.name, folder_name(partition))
                del self._copies[partition]
            self._topic_ids[partition] = topic_id
            return True

    def _note_copy(self, partition: TopicPartition, copy: _Copy) -> None:
        self.log_starts.note(partition, copy.log.log_start_offset)
        self.recovery_points.note(partition, copy.log.end_offset)
        self.high_watermarks.note(partition, copy.log.end_offset)
        if copy.was_cleaned:
            # It has gaps for good. How far it was cleaned may be told of another topic of the name.
            self.cleaned_offsets.note(partition, 0)

    async def _make_room(self, partition: TopicPartition, topic_id: UUID) -> None:
        """A folder that has the partition's name goes: a creation that was cut off left it, or,
        where records are in it, nobody knows why it is there."""
        if folder_name(partition) not in await self._run(self._tree.folders):
            return
        found_id = self._topic_ids.get(partition)
        # What was copied is put aside as whole as it is, also where no record is in it.
        await self._discard(partition, keeps_empty=found_id == topic_id or found_id in self._aside)

    async def adopt(
        self,
        found: FoundPartition,
        topic_id: UUID,
        config: TopicConfig,
        *,
        accepts_data_loss: bool = False,
    ) -> AdoptedLog:
        """Copies a partition's files and reads every batch of the copy.

        It lies beside the partitions that are served, and `create` with this topic id puts it in
        its place. Until then nothing else has changed: `give_up_copies`, and each start, removes
        it. A call that fails leaves no copy; one that is cancelled waits for its thread, which may
        have made one by then. Errors: StoreUnavailable, Corrupt (also where records that were
        durable are lost, unless the caller accepts it).
        """
        partition, stop = found.partition, Event()
        unique = self.environment.random.uuid().hex
        name = renamed_folder(partition, unique, DELETE_FOLDER)
        plan = self._plan(partition, config)._replace(
            recovery_point=0,
            log_start_offset=found.log_start_offset,
            synced=None,
            accepts_data_loss=accepts_data_loss,
            clean_end_offset=-1,
        )
        own = Path(str(self._tree), folder_name(partition))
        is_in_place = await self._run(lambda: found.path.resolve() == own.resolve())

        async def copy() -> AdoptedLog:
            log = await self._run(self._copy, found, name, plan, stop.is_set)
            self._copies[partition] = _Copy(topic_id, name, is_in_place, found.was_cleaned, log)
            return log

        return await to_its_end(copy(), stop.set)

    def _copy(
        self, found: FoundPartition, name: str, plan: LoadPlan, is_stopped: IsStopped
    ) -> AdoptedLog:
        try:
            return make_copy(found, self._tree.make(name), plan, is_stopped)
        except BaseException:
            self._tree.remove(name)
            raise

    async def give_up_copies(self) -> None:
        """Removes what was adopted and not created. No creation of it is under way: it would make
        empty partitions."""
        copies, self._copies = self._copies, {}
        for copy in copies.values():
            try:
                await self._run(self._tree.remove, copy.name)
            except StreamlogError as error:
                log.warning("the copy %s stays until the next start: %s", copy.name, error)

    def _make(self, partition: TopicPartition, topic_id: UUID) -> None:
        folder = self._tree.make(folder_name(partition))
        replace_file(folder, PARTITION_METADATA, encode_partition_metadata(topic_id))

    async def claim(self, partition: TopicPartition, topic_id: UUID) -> bool:
        """Whether the partition that a topic's record names is there; `discard` spares it from then
        on. True, too, while the folder is in doubt: the newest one, which has it, may come back."""
        async with self._turns.holding(partition):
            if self._topic_ids.get(partition) != topic_id:
                return self.doubt is not None
            self._claimed[partition] = topic_id
            return True

    async def is_empty(self, partition: TopicPartition, topic_id: UUID) -> bool:
        """Whether the partition is there and no record was ever kept in it. Errors:
        StoreUnavailable."""
        async with self._turns.holding(partition):
            is_there = self._topic_ids.get(partition) == topic_id
            return is_there and await self._run(self._is_empty, partition)

    async def discard(
        self, partition: TopicPartition, topic_id: UUID, *, is_topic_known: bool
    ) -> bool:
        """Deletes a partition that no topic has, or puts it aside where it has or had records, or
        another one of its topic was put aside: the metadata may be older than the folder. Where
        there is a topic of the id, `is_topic_known`, an empty one is what a creation left that was
        cut off, and deleted: an adoption would make it the topic's. False, and nothing is done,
        where the partition is another topic's by now, or claimed. Errors: StoreUnavailable."""
        async with self._turns.holding(partition):
            if self._topic_ids.get(partition) != topic_id:
                return False
            if self._claimed.get(partition) == topic_id:
                return False
            keeps_empty = topic_id in self._aside and not is_topic_known
            await self._discard(partition, keeps_empty=keeps_empty)
            return True

    async def _discard(self, partition: TopicPartition, *, keeps_empty: bool) -> None:
        if keeps_empty or not await self._run(self._is_empty, partition):
            await self._put_aside(partition)
        else:
            await self._remove(partition)

    async def _put_aside(self, partition: TopicPartition) -> str:
        """Returns the folder's new name."""
        unique = self.environment.random.uuid().hex
        name = renamed_folder(partition, unique, STRAY_FOLDER)
        await self._run(self._tree.rename, folder_name(partition), name)
        topic_id = self._topic_ids.pop(partition, None)
        if topic_id is not None:
            self._aside.add(topic_id)
        self._claimed.pop(partition, None)
        log.warning("the folder of %s was put aside as %s: no topic has it", partition, name)
        return name

    def _is_empty(self, partition: TopicPartition) -> bool:
        """Whether no record was ever kept there. Other files, and folders, tell of a segment that
        is missing, or of somebody else; neither a creation that was cut off nor a partition
        without records leaves them."""
        folder = self._tree.open(folder_name(partition))
        names, first = set(folder.list()), file_name(0, LOG)
        known = _WITHOUT_RECORDS if first in names else _OF_A_CREATION
        if not names <= known or has_folders(folder):
            return False
        if first not in names:
            return True
        file = folder.open(first)
        try:
            return not file.size()
        finally:
            file.close()

    async def remove(self, partition: TopicPartition, topic_id: UUID) -> None:
        """Deletes a partition that is not open; does nothing where it is gone, or another topic's.

        Errors: StoreUnavailable.
        """
        async with self._turns.holding(partition):
            if self._topic_ids.get(partition) == topic_id:
                await self._remove(partition)

    async def _remove(self, partition: TopicPartition) -> None:
        unique = self.environment.random.uuid().hex
        name = renamed_folder(partition, unique, DELETE_FOLDER)

        def rename() -> None:
            # It is gone where a call that was cut off has renamed it, or somebody removed it.
            with contextlib.suppress(FileNotFoundError):
                self._tree.rename(folder_name(partition), name)

        await self._run(rename)
        # Not before: after an error the deletion is repeated, and has to find the partition.
        self._topic_ids.pop(partition, None)
        self._claimed.pop(partition, None)
        self._distrusted.pop(partition, None)
        for checkpoint in self._checkpoints:
            checkpoint.forget(partition)
        self.save_soon()
        await self._run(self._tree.remove, name)

    async def load(
        self, partition: TopicPartition, config: TopicConfig
    ) -> tuple[PartitionFolder, LoadedLog]:
        """Errors: StoreUnavailable (the folder is missing, or cannot be read), Corrupt (it ends
        before what was durable)."""
        if self.doubt is not None:
            self._has_refused = True
            raise StoreUnavailable(
                f"{partition} is not opened: {self.doubt}. Bring the newest folder back, or start "
                "once with --accept-data-loss, which goes on with what is there",
                path=str(self._tree),
                waiting_helps=False,
            )
        failed = self._in_use.get(partition)
        if failed is not None:
            # Its log has failed and may still be writing: it is to be closed, and is not yet.
            await failed.close()
        plan = self._plan(partition, config)
        # A partition that was given up fails here, and no longer in a write.
        with self.writes.checked(str(partition)):
            folder, loaded, files = await self._run(self._load, partition, plan)
        self._distrusted.pop(partition, None)

        topic_id = self._topic_ids[partition]

        async def remove() -> None:
            await self.remove(partition, topic_id)

        opened = PartitionFolder(partition, self, folder, files, remove)
        try:
            await self._note_loaded(partition, loaded, config)
        except BaseException:
            await opened.close()
            raise
        self._in_use[partition] = opened
        return opened, loaded

    def _plan(self, partition: TopicPartition, config: TopicConfig) -> LoadPlan:
        limits = self.environment.config
        return LoadPlan(
            self.recovery_points.get(partition),
            self.log_starts.get(partition),
            self.environment.clock.now_ms(),
            config,
            ProducerLimits(
                limits.producer_id_expiration_ms,
                limits.producer_batches_remembered,
                limits.producer_ids_max,
                limits.producer_idle_ms_min,
            ),
            self._distrusted.get(partition),
            self.accepts_data_loss,
            self.cleaned_offsets.find(partition),
        )

    async def _note_loaded(
        self, partition: TopicPartition, loaded: LoadedLog, config: TopicConfig
    ) -> None:
        """The checkpoints say what was found, all of which is durable.

        New records come at the offsets of lost ones: no checkpoint is ahead of them on return.
        The next cleaning may leave no batch at a recovery point of before, and it waits until the
        one that is noted here is written down. Errors: StoreUnavailable.
        """
        active = loaded.segments[-1]
        for checkpoint in self._checkpoints:
            await checkpoint.lower(partition, active.end)
        start = loaded.log_start_offset
        if not config.remote_storage_enable and start == loaded.segments[0].base_offset:
            await self.note_start(partition, start)
        elif not self.log_starts.is_durable(partition):
            # A start that a failed log could not write down is not shown before it is durable.
            await self.log_starts.save()
        if self.recovery_points.get(partition) < active.base_offset:
            self.recovery_points.note(partition, active.base_offset)
            self.save_soon()

    def _load(
        self, partition: TopicPartition, plan: LoadPlan
    ) -> tuple[GrowingFolder, LoadedLog, LogFiles]:
        folder = self._tree.open(folder_name(partition))
        loaded = load(folder, plan)
        return folder, loaded, LogFiles.open(folder, loaded.segments[-1].base_offset)

    # What open partitions ask for

    def distrust(
        self, partition: TopicPartition, folder: PartitionFolder, synced: SyncedTo
    ) -> None:
        """A log failed: of its active segment only so much is durable.

        Not of one whose files an open of the partition has closed: that open has read them since,
        and other batches lie behind.
        """
        if self._in_use.get(partition) is folder:
            self._distrusted[partition] = synced

    def closed(self, partition: TopicPartition, folder: PartitionFolder) -> None:
        """The log's files are closed."""
        if self._in_use.get(partition) is folder:
            del self._in_use[partition]

    def save_soon(self) -> None:
        """Writes the recovery points and high watermarks in the background."""
        if not self._is_saving:
            self._is_saving = True
            self._background.spawn(self._save(), name="checkpoints")

    async def _save(self) -> None:
        files = self.recovery_points, self.high_watermarks, self.log_starts
        try:
            # Others note theirs while a file is written.
            while not all(one.is_saved for one in files):
                for one in files:
                    await one.save()
        except StreamlogError as error:
            # A recovery point that is too low costs time at the next start, and nothing else; a log
            # start, too, is found without its checkpoint where it is written here.
            log.warning("the next start may read more: %s", error)
        finally:
            self._is_saving = False

    async def note_start(self, partition: TopicPartition, offset: int) -> None:
        """The log start offset of a log that begins with its first segment, which is durable.

        It is written down for a tier that is turned on later: then the checkpoint alone says where
        the log begins. Without room that is done when there is some (`save_soon`).
        """
        if self.log_starts.get(partition) == offset and self.log_starts.is_durable(partition):
            return
        self.log_starts.note(partition, offset)
        try:
            await self.log_starts.save()
        except StreamlogError as error:
            log.warning("the start of %s is written down later: %s", partition, error)

    def remove_later(
        self,
        partition: TopicPartition,
        folder: GrowingFolder,
        names: Sequence[str],
        delay_ms: int,
    ) -> None:
        """Removes files that are no longer part of a log. A crash leaves them to the next open."""

        def remove() -> None:
            for name in names:
                remove_if_there(folder, name)

        async def work() -> None:
            await asyncio.sleep(delay_ms / 1000)
            try:
                await self._run(remove)
                # There is room for what found none.
                self.save_soon()
            except StreamlogError as error:
                log.warning("files of %s stay until its next open: %s", partition, error)

        self._background.spawn(work(), name=f"remove of {partition}")

    # The end

    async def close(self) -> None:
        """Call it when all logs are closed. Marks a clean end. Errors: StoreUnavailable."""
        await self._background.close()
        for checkpoint in self._checkpoints:
            await checkpoint.save()
        content = encode_clean_shutdown()
        await self._run(replace_file, self._tree.top, CLEAN_SHUTDOWN, content)

    async def kill(self) -> None:
        await self._background.close()

    def _task_failed(self, error: BaseException) -> None:
        log.error("background work of the log folder %s failed: %r", self._tree, error)

    async def _run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        try:
            return await self.offload.run(Lane.FILES, work, *arguments)
        except FileNotFoundError as error:
            raise StoreUnavailable(
                f"{error.filename} is missing: a unified topic lives in this folder alone. Put "
                "it back, or delete the topic",
                path=str(error.filename),
                waiting_helps=False,
            ) from error
        except OSError as error:
            doing = "work in the log folder"
            raise typed_os_error(error, str(self._tree), doing, StoreUnavailable) from error
