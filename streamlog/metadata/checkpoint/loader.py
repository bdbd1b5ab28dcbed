"""Loads the metadata: the checkpoint's files, then every later record, all at one revision.

1. Read the checkpoint pointer and the tails of the files that it names.
2. At one revision, read the pointer again, fences, records and transfer records. If the pointer has
   changed, begin again at 1.
3. Fold what the checkpoint does not cover, in the order of revisions. The caller watches from the
   next revision on.

A compacted revision or a vanished file also begins again: a node wrote a checkpoint meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from streamlog.errors import Corrupt, MetadataUnavailable, ObjectNotFound, RevisionCompacted
from streamlog.format.checkpoint.state import CheckpointState, decode_state
from streamlog.format.records import record as record_format
from streamlog.format.records.record import Record
from streamlog.kvstore.interface import KVStore, StoredKeyValue, prefix_end
from streamlog.metadata.checkpoint.files import LevelFile, Levels, read_level
from streamlog.metadata.fold.compaction_history import CompactionHistory
from streamlog.metadata.fold.fold import Fold, StreamHeader
from streamlog.metadata.fold.staging import FoldedStaging
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys import checkpoint, fence, transfer
from streamlog.metadata.keys.checkpoint import CheckpointPointer
from streamlog.metadata.keys.fence import Fence
from streamlog.metadata.keys.space import number_in, tenure_in
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.concurrency.steps import run_cooperatively
from streamlog.runtime.offload import Lane, Offload

PAGE_KEYS = 128
DECODE_INLINE_BYTES = 8 << 10
"""Records up to this size are decoded on the loop: about 0.2 ms."""
START_OVER_MAX = 100


@dataclass(slots=True)
class MetadataState:
    """All that a node knows of the shared metadata: the fold, the checkpoint, the fences."""

    fold: Fold
    levels: Levels = field(default_factory=Levels)
    dead: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Object id → when it was found dead, ms, and a revision at or after that moment."""
    cut_streams: set[int] = field(default_factory=set)
    base_dead_ranges: int = 0
    live_objects: int = 0
    """Number of live objects in the checkpoint."""
    checkpoint: CheckpointPointer | None = None
    checkpoint_revision: int = 0
    """Revision at which the checkpoint pointer was put; 0: there is none."""
    fences: dict[Tenure, Fence] = field(default_factory=dict)
    leftover: set[Tenure] = field(default_factory=set)
    """Tenures with covered records left in the KV store, because a deletion was interrupted."""

    @property
    def has_history(self) -> bool:
        """As SessionInfo.has_history."""
        return bool(self.fold.ids) or self.checkpoint is not None


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The files of a checkpoint pointer that was put at `revision`."""

    checkpoint: CheckpointPointer | None
    revision: int
    levels: Levels
    state: CheckpointState | None


class Loader:
    def __init__(self, kv: KVStore, store: ObjectStore, prefix: bytes, offload: Offload) -> None:
        self._kv = kv
        self._store = store
        self._prefix = prefix
        self._offload = offload

    async def load(self) -> MetadataState:
        """Errors: MetadataUnavailable, StoreUnavailable, Corrupt, UnsupportedVersion."""
        for _ in range(START_OVER_MAX):
            state = await self.finish(await self.read_files())
            if state is not None:
                return state
        raise MetadataUnavailable(
            f"the checkpoint changed {START_OVER_MAX} times while it was read; is some node "
            "writing checkpoints without a pause?"
        )

    async def read_files(self) -> CheckpointFiles:
        """Reads the files that the checkpoint pointer names now."""
        missing = None
        while True:
            kv = await self._kv.get(checkpoint.key(self._prefix))
            if kv is None:
                return CheckpointFiles(None, 0, Levels(), None)
            if missing is not None and missing[0] == kv.mod_revision:
                name = missing[1]
                raise Corrupt(
                    f"the metadata names the checkpoint file {name}, which the store does not have",
                    object_key=name,
                )
            named = checkpoint.decode(kv.value)
            try:
                return await self._read_files(named, kv.mod_revision)
            except ObjectNotFound as error:
                missing = kv.mod_revision, str(error.fields.get("object_key", "?"))

    async def finish(self, files: CheckpointFiles) -> MetadataState | None:
        """The state at one revision; None: the checkpoint pointer has changed since."""
        try:
            return await self._finish(files)
        except RevisionCompacted:
            return None

    async def _read_files(self, named: CheckpointPointer, revision: int) -> CheckpointFiles:
        levels: list[LevelFile | None] = []
        for ref in (named.delta, named.base):
            levels.append(
                None if ref is None else await read_level(self._store, ref, self._offload)
            )
        delta, state = levels[0], None
        if delta is not None:
            try:
                state = await self._offload.run(Lane.CPU, decode_state, delta.tail.state)
            except (ValueError, struct.error) as error:
                raise Corrupt(
                    f"the state in the checkpoint file {delta.ref.name} makes no sense: {error}",
                    object_key=delta.ref.name,
                ) from error
            delta.tail.state = b""
        return CheckpointFiles(named, revision, Levels(named.revision, *levels), state)

    async def _finish(self, files: CheckpointFiles) -> MetadataState | None:
        revision = await self._kv.revision()
        kv = await self._kv.get(checkpoint.key(self._prefix), revision=revision)
        if (kv.mod_revision if kv else 0) != files.revision:
            return None
        state = await self._offload.run(Lane.CPU, _state_of, files)
        fences = self._prefix + b"f/"
        async for kv in self._range(fences, revision):
            state.fences[tenure_in(kv.key, self._prefix)] = fence.decode(kv.value)
        # A retired tenure never comes back: its mark can go.
        for tenure in [t for t in state.fold.marks if t not in state.fences]:
            if tenure not in state.fold.held:
                del state.fold.marks[tenure]
        records = [kv async for kv in self._range(self._prefix + b"c/", revision)]
        records += [kv async for kv in self._range(self._prefix + b"m/", revision)]
        records.sort(key=lambda kv: kv.mod_revision)
        for kv in records:
            await self._fold(state, kv)
        state.fold.revision = revision
        return state

    async def _fold(self, state: MetadataState, kv: StoredKeyValue) -> None:
        tenure, number = tenure_in(kv.key, self._prefix), number_in(kv.key)
        mark = state.fold.mark(tenure)
        if kv.key.startswith(self._prefix + b"c/"):
            if number <= mark.seq:
                state.leftover.add(tenure)
                return
            record = await decode_record(kv.value, self._offload)
            await run_cooperatively(
                state.fold.apply_record(tenure, number, record, kv.mod_revision, len(kv.value))
            )
        else:
            if number <= mark.gen:
                state.leftover.add(tenure)
                return
            await run_cooperatively(
                state.fold.apply_transfer(tenure, number, transfer.decode(kv.value))
            )

    async def _range(self, start: bytes, revision: int) -> AsyncIterator[StoredKeyValue]:
        end = prefix_end(start)
        while True:
            page = await self._kv.range(start, end, limit=PAGE_KEYS, revision=revision)
            for kv in page.kvs:
                yield kv
            if not page.more:
                return
            start = page.kvs[-1].key + b"\0"


async def decode_record(value: bytes, offload: Offload) -> Record:
    """Errors: Corrupt, UnsupportedVersion."""
    if len(value) <= DECODE_INLINE_BYTES:
        return record_format.decode(value)
    return await offload.run(Lane.CPU, record_format.decode, value)


def _state_of(files: CheckpointFiles) -> MetadataState:
    if files.checkpoint is None:
        return MetadataState(Fold())
    fold = Fold(files.checkpoint.revision)
    fold.marks = dict(files.checkpoint.tenures)
    state = MetadataState(
        fold,
        files.levels,
        checkpoint=files.checkpoint,
        checkpoint_revision=files.revision,
    )
    if files.state is None:
        return state
    streams, dead = files.state.streams, files.state.dead
    names = [Tenure(*name) for name in streams.holder_names]
    fold.ids = list(streams.ids)
    fold.starts = dict(zip(streams.ids, streams.starts, strict=True))
    fold.ends = dict(zip(streams.ids, streams.ends, strict=True))
    rows = zip(streams.ids, streams.epochs, streams.holders, streams.states, strict=True)
    for row, (stream_id, epoch, holder, is_open) in enumerate(rows):
        token, tags = streams.texts.get(row, (b"", ()))
        fold.info[stream_id] = StreamHeader(epoch, names[holder], is_open == 1, token, tags)
        fold.held.setdefault(names[holder], set()).add(stream_id)
    fold.compactions = CompactionHistory(files.state.compactions, files.state.compaction_inputs)
    fold.staging = FoldedStaging(files.state.staging)
    state.dead = dict(zip(dead.ids, zip(dead.died_ms, dead.revisions, strict=True), strict=True))
    state.cut_streams = set(files.state.cut_streams)
    state.base_dead_ranges = files.state.base_dead_ranges
    state.live_objects = files.state.live_objects
    return state
