"""Builds the files of a checkpoint from the files before it and the generations since.

1. Deaths are found here and nowhere else: ranges that a trim or a destruction has ended since the
   last checkpoint are counted off their objects; an object that has none left is dead for good.
2. The delta takes what is new. When it has grown to a share of the base, or as much of the base is
   dead, everything is merged into a new base and the delta holds the streams alone.
3. All that burns goes through Offload in chunks; blocks without a change are copied unread.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from streamlog.codec.crc import crc32c
from streamlog.errors import Internal
from streamlog.format.checkpoint_blocks import (
    OBJECT_BYTES,
    RANGE_BYTES,
    ObjectEntry,
    RangeGroup,
    decode_objects,
    decode_ranges,
)
from streamlog.format.checkpoint_state import (
    CheckpointState,
    DeadTable,
    StreamTable,
    Text,
    encode_state,
)
from streamlog.format.checkpoint_tail import Tail, encode_tail
from streamlog.metadata.checkpoint_files import BlockReader, LevelFile, Levels, groups_of
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.fold import Fold, Info
from streamlog.metadata.generation import Generation
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys.checkpoint import TenureMark
from streamlog.metadata.merge_objects import ObjectMerger
from streamlog.metadata.merge_ranges import EVERYTHING, RangeChange, RangeMerger, group_of
from streamlog.metadata.steps import Steps, run_offloaded
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

RUN_BLOCKS = 64
"""Blocks read by one GET: about 1 MiB."""
STEP_BLOCKS = 8
"""Blocks that one call looks at: about 1 ms."""
STEP_STREAMS = 512


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fold at a revision, and the frozen generations from the last checkpoint to it."""

    revision: int
    info: Mapping[int, Info]
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    marks: Mapping[Tenure, TenureMark]
    generations: Sequence[Generation]


def take_snapshot(fold: Fold) -> Snapshot:
    """Freezes the newest generation. Copies the tables of streams: about 1 ms for 30,000."""
    if not fold.newest.is_empty:
        fold.generations.append(Generation())
    return Snapshot(
        fold.revision,
        dict(fold.info),
        dict(fold.starts),
        dict(fold.ends),
        dict(fold.marks),
        tuple(fold.generations[:-1]),
    )


@dataclass(slots=True)
class BuiltFile:
    parts: list[Buffer]
    tail: Tail
    size_bytes: int
    tail_position: int
    tail_crc32c: int


@dataclass(slots=True)
class Built:
    """`base` None: the old one stays. `deaths`: object ids whose death this checkpoint found."""

    delta: BuiltFile
    base: BuiltFile | None
    deaths: list[int]
    cut_streams: set[int]
    base_dead_ranges: int
    live_objects: int
    now_ms: int


@dataclass(slots=True)
class _Deaths:
    """Ranges that ended, by object."""

    by_object: Counter[int] = field(default_factory=Counter)
    in_base: int = 0
    base_streams: set[int] = field(default_factory=set)


async def build(
    snapshot: Snapshot,
    levels: Levels,
    dead: Mapping[int, tuple[int, int]],
    cut_streams: set[int],
    base_dead_ranges: int,
    live_objects: int,
    *,
    now_ms: int,
    reader: BlockReader,
    offload: Offload,
    config: MetadataConfig,
) -> Built:
    """`dead`: objects already known as dead, id → (ms, revision).

    Errors: ObjectNotFound (a file of `levels` has gone), StoreUnavailable, Corrupt.
    """
    cuts = _cuts(snapshot)
    changes = await _changes(snapshot, cuts, offload)
    deaths = _Deaths()
    counting = _count_new_deaths(snapshot.generations, cuts, deaths.by_object)
    await run_offloaded(offload, counting)
    for level in (levels.delta, levels.base):
        if level is not None and cuts:
            await _count_deaths(level, level is levels.base, cuts, deaths, reader, offload)
    objects = await _object_changes(snapshot, levels, deaths.by_object, reader, offload)
    died = [object_id for object_id, entry in objects.items() if not entry.live]
    base_dead = base_dead_ranges + deaths.in_base
    cut = cut_streams | deaths.base_streams
    live = live_objects + sum(len(g.objects) for g in snapshot.generations) - len(died)

    new_ranges = sum(len(g.counts) for change in changes.values() for g in change.added)
    added_bytes = RANGE_BYTES * new_ranges + OBJECT_BYTES * len(objects)
    if _needs_base(levels, added_bytes, base_dead, config):
        for stream_id in cut:
            changes.setdefault(stream_id, RangeChange()).cut = _cut_of(snapshot, stream_id)
        entries: dict[int, ObjectEntry] = {}
        if levels.delta is not None:
            await _take_in(levels.delta, changes, entries, reader, offload)
        entries.update(objects)
        base_changes = {i: entry if entry.live else None for i, entry in entries.items()}
        base = await _merge(levels.base, changes, base_changes, b"", reader, offload)
        cut, base_dead = set(), 0
        state = await run_offloaded(
            offload, _state(snapshot, dead, died, now_ms, cut, base_dead, live)
        )
        delta = await _merge(None, {}, {}, state, reader, offload)
        return Built(delta, base, died, cut, base_dead, live, now_ms)
    state = await run_offloaded(offload, _state(snapshot, dead, died, now_ms, cut, base_dead, live))
    kept = _without_short_lived(snapshot, objects)
    delta = await _merge(levels.delta, changes, kept, state, reader, offload)
    return Built(delta, None, died, cut, base_dead, live, now_ms)


def _cuts(snapshot: Snapshot) -> dict[int, tuple[int, int]]:
    """Stream → (start at the last checkpoint, start now or EVERYTHING)."""
    cuts: dict[int, tuple[int, int]] = {}
    for generation in snapshot.generations:
        for stream_id, start in generation.cuts.items():
            if stream_id not in cuts:
                cuts[stream_id] = (start, _cut_of(snapshot, stream_id))
    return cuts


def _cut_of(snapshot: Snapshot, stream_id: int) -> int:
    return snapshot.starts[stream_id] if stream_id in snapshot.info else EVERYTHING


async def _changes(
    snapshot: Snapshot, cuts: Mapping[int, tuple[int, int]], offload: Offload
) -> dict[int, RangeChange]:
    changes = {stream_id: RangeChange(cut) for stream_id, (_, cut) in cuts.items()}
    for generation in snapshot.generations:
        items = list(generation.ranges.items())
        for low in range(0, len(items), STEP_STREAMS):
            await offload.run(Lane.CPU, _add_groups, changes, items[low : low + STEP_STREAMS])
    return changes


def _add_groups(changes: dict[int, RangeChange], items: Sequence[tuple[int, array[int]]]) -> None:
    for stream_id, ranges in items:
        changes.setdefault(stream_id, RangeChange()).added.append(group_of(stream_id, ranges))


# deaths


def _count_new_deaths(
    generations: Sequence[Generation],
    cuts: Mapping[int, tuple[int, int]],
    by_object: Counter[int],
) -> Steps[None]:
    for generation in generations:
        for index, (stream_id, (_, cut)) in enumerate(cuts.items()):
            if index % STEP_STREAMS == STEP_STREAMS - 1:
                yield
            ranges = generation.ranges.get(stream_id)
            if ranges is not None:
                for at in range(1, len(ranges), 2):
                    if ranges[at] > cut:
                        break
                    by_object[ranges[at + 1]] += 1


async def _count_deaths(
    level: LevelFile,
    is_base: bool,
    cuts: Mapping[int, tuple[int, int]],
    deaths: _Deaths,
    reader: BlockReader,
    offload: Offload,
) -> None:
    """Ranges of the file that lived at the last checkpoint and are cut now."""
    index = level.tail.ranges
    wanted: dict[int, list[int]] = {}
    for stream_id, (start, cut) in cuts.items():
        block = max(index.block_of(stream_id, start), 0)
        while block < len(index) and (index.streams[block], index.starts[block]) < (stream_id, cut):
            wanted.setdefault(block, []).append(stream_id)
            block += 1
    async for first, last, run in _runs(level, sorted(wanted), reader, objects=False):
        found = await offload.run(Lane.CPU, _deaths_in, level, first, last, run, wanted, cuts)
        for stream_id, objects in found:
            deaths.by_object.update(objects)
            if is_base:
                deaths.in_base += len(objects)
                deaths.base_streams.add(stream_id)


def _deaths_in(
    level: LevelFile,
    first: int,
    last: int,
    run: Buffer,
    wanted: Mapping[int, Sequence[int]],
    cuts: Mapping[int, tuple[int, int]],
) -> list[tuple[int, array[int]]]:
    found = []
    for block in range(first, last):
        groups = decode_ranges(_slice(level, block, first, run), level.ref.name)
        for stream_id in wanted[block]:
            start, cut = cuts[stream_id]
            for group in groups_of(groups, stream_id):
                ends = accumulate(group.counts, initial=group.start)
                next(ends)
                objects = array(
                    "Q",
                    (o for end, o in zip(ends, group.objects, strict=True) if start < end <= cut),
                )
                if objects:
                    found.append((stream_id, objects))
    return found


# objects


async def _object_changes(
    snapshot: Snapshot,
    levels: Levels,
    dead_ranges: Counter[int],
    reader: BlockReader,
    offload: Offload,
) -> dict[int, ObjectEntry]:
    """Every object that is new or has lost ranges, with its count of live ones."""
    changes: dict[int, ObjectEntry] = {}
    left = Counter(dead_ranges)
    for generation in snapshot.generations:
        for object_id, (row, ranges, _) in generation.objects.items():
            live = ranges - left.pop(object_id, 0)
            changes[object_id] = ObjectEntry(
                object_id,
                row.size_bytes,
                row.index_position,
                row.index_length,
                row.index_crc32c,
                live,
                row.store,
            )
    for level in (levels.delta, levels.base):
        if level is not None and left:
            for entry in await _find_objects(level, sorted(left), reader, offload):
                live = entry.live - left.pop(entry.object_id)
                changes[entry.object_id] = entry._replace(live=live)
    if left or any(entry.live < 0 for entry in changes.values()):
        raise Internal(f"the count of live ranges is wrong for objects {sorted(left)[:5]}")
    return changes


async def _find_objects(
    level: LevelFile, object_ids: Sequence[int], reader: BlockReader, offload: Offload
) -> list[ObjectEntry]:
    index = level.tail.objects
    wanted: dict[int, set[int]] = {}
    for object_id in object_ids:
        block = index.block_of(object_id)
        if block >= 0:
            wanted.setdefault(block, set()).add(object_id)
    found: list[ObjectEntry] = []
    async for first, last, run in _runs(level, sorted(wanted), reader, objects=True):
        found += await offload.run(Lane.CPU, _objects_in, level, first, last, run, wanted)
    return found


def _objects_in(
    level: LevelFile, first: int, last: int, run: Buffer, wanted: Mapping[int, set[int]]
) -> list[ObjectEntry]:
    found: list[ObjectEntry] = []
    for block in range(first, last):
        columns = decode_objects(_slice(level, block, first, run, objects=True), level.ref.name)
        rows = (columns.find(object_id) for object_id in wanted[block])
        found += [row for row in rows if row is not None]
    return found


def _without_short_lived(
    snapshot: Snapshot, objects: Mapping[int, ObjectEntry]
) -> dict[int, ObjectEntry | None]:
    """Objects born and dead since the last checkpoint hide nothing: no entry is needed."""
    born = {o for generation in snapshot.generations for o in generation.objects}
    return {i: entry for i, entry in objects.items() if entry.live or i not in born}


# merging


def _needs_base(levels: Levels, added_bytes: int, base_dead: int, config: MetadataConfig) -> bool:
    delta_bytes = added_bytes
    if levels.delta is not None:
        tail = levels.delta.tail
        delta_bytes += tail.objects.positions[-1] - tail.ranges.positions[0]
    base_bytes = levels.base.ref.size_bytes if levels.base is not None else 0
    limit = max(config.delta_bytes_min, base_bytes * config.delta_percent // 100)
    return delta_bytes > limit or RANGE_BYTES * base_dead > limit


async def _take_in(
    level: LevelFile,
    changes: dict[int, RangeChange],
    entries: dict[int, ObjectEntry],
    reader: BlockReader,
    offload: Offload,
) -> None:
    """Adds the whole level to what is merged into the base; its ranges come before newer ones."""
    older: dict[int, list[RangeGroup]] = {}
    async for first, last, run in _runs(
        level, range(len(level.tail.ranges)), reader, objects=False
    ):
        await offload.run(Lane.CPU, _take_in_ranges, level, first, last, run, older)
    for stream_id, groups in older.items():
        change = changes.setdefault(stream_id, RangeChange())
        change.added = groups + change.added
    async for first, last, run in _runs(
        level, range(len(level.tail.objects)), reader, objects=True
    ):
        await offload.run(Lane.CPU, _take_in_objects, level, first, last, run, entries)


def _take_in_ranges(
    level: LevelFile, first: int, last: int, run: Buffer, older: dict[int, list[RangeGroup]]
) -> None:
    for block in range(first, last):
        for group in decode_ranges(_slice(level, block, first, run), level.ref.name):
            older.setdefault(group.stream_id, []).append(group)


def _take_in_objects(
    level: LevelFile, first: int, last: int, run: Buffer, entries: dict[int, ObjectEntry]
) -> None:
    for block in range(first, last):
        for entry in decode_objects(
            _slice(level, block, first, run, objects=True), level.ref.name
        ).rows():
            entries[entry.object_id] = entry


async def _merge(
    old: LevelFile | None,
    changes: Mapping[int, RangeChange],
    objects: Mapping[int, ObjectEntry | None],
    state: bytes,
    reader: BlockReader,
    offload: Offload,
) -> BuiltFile:
    tail = old.tail if old is not None else Tail()
    name = old.ref.name if old is not None else ""
    ranges = RangeMerger(tail.ranges, tail.range_count, changes, name)
    if old is not None:
        blocks = range(len(tail.ranges))
        async for first, last, run in _runs(old, blocks, reader, objects=False):
            await run_offloaded(offload, ranges.feed(run, first, last))
    written = await run_offloaded(offload, ranges.finish())
    entries = ObjectMerger(
        tail.objects, tail.object_count, objects, name, written.index.positions[-1]
    )
    if old is not None:
        blocks = range(len(tail.objects))
        async for first, last, run in _runs(old, blocks, reader, objects=True):
            await run_offloaded(offload, entries.feed(run, first, last))
    done = await run_offloaded(offload, entries.finish())
    new = Tail(written.index, done.index, written.ranges, done.objects, state)
    encoded = await offload.run(Lane.CPU, encode_tail, new)
    position = done.index.positions[-1]
    crc = int.from_bytes(encoded[-4:], "little")
    assert crc == crc32c(memoryview(encoded)[:-4])
    # The state is as large as all streams together and needed at opening only.
    new.state = b""
    return BuiltFile(
        [*written.parts, *done.parts, encoded], new, position + len(encoded), position, crc
    )


def _state(
    snapshot: Snapshot,
    dead: Mapping[int, tuple[int, int]],
    died: Iterable[int],
    now_ms: int,
    cut: set[int],
    base_dead: int,
    live_objects: int,
) -> Steps[bytes]:
    ids = array("Q", sorted(snapshot.info))
    number: dict[Tenure, int] = {}
    epochs, holders = array("I"), array("I")
    starts, ends, states = array("Q"), array("Q"), bytearray()
    texts: dict[int, Text] = {}
    for row, stream_id in enumerate(ids):
        if row % STEP_STREAMS == STEP_STREAMS - 1:
            yield
        info = snapshot.info[stream_id]
        epochs.append(info.epoch)
        holders.append(number.setdefault(info.holder, len(number)))
        starts.append(snapshot.starts[stream_id])
        ends.append(snapshot.ends[stream_id])
        states.append(1 if info.is_open else 2)
        if info.token or info.tags:
            texts[row] = (info.token, info.tags)
    yield
    streams = StreamTable(ids, epochs, holders, starts, ends, bytes(states), texts, list(number))
    all_dead = {**dead, **{object_id: (now_ms, snapshot.revision) for object_id in died}}
    table = DeadTable(
        array("Q", all_dead),
        array("Q", [ms for ms, _ in all_dead.values()]),
        array("Q", [revision for _, revision in all_dead.values()]),
    )
    yield
    return encode_state(
        CheckpointState(streams, table, array("Q", sorted(cut)), base_dead, live_objects)
    )


# reading blocks


async def _runs(
    level: LevelFile, blocks: Sequence[int], reader: BlockReader, *, objects: bool
) -> AsyncIterator[tuple[int, int, Buffer]]:
    """(first, last, bytes) for neighbours of the sorted list, at most STEP_BLOCKS at once."""
    place = level.object_bytes if objects else level.range_bytes
    at = 0
    while at < len(blocks):
        first, count = blocks[at], 1
        while (
            count < RUN_BLOCKS and at + count < len(blocks) and blocks[at + count] == first + count
        ):
            count += 1
        start, end = place(first, first + count)
        run = memoryview(await reader.read(level, start, end))
        for low in range(first, first + count, STEP_BLOCKS):
            high = min(low + STEP_BLOCKS, first + count)
            part_start, part_end = place(low, high)
            yield low, high, run[part_start - start : part_end - start]
        at += count


def _slice(
    level: LevelFile, block: int, first: int, run: Buffer, *, objects: bool = False
) -> memoryview:
    place = level.object_bytes if objects else level.range_bytes
    origin, _ = place(first, first)
    start, end = place(block, block + 1)
    return memoryview(run)[start - origin : end - origin]
