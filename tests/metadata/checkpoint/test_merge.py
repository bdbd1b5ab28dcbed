"""Merging into checkpoint files gives the same as a dict, and copies untouched blocks."""

from __future__ import annotations

import random
from array import array

import pytest

from streamlog.errors import Corrupt
from streamlog.format.checkpoint.blocks import (
    BLOCK_BYTES_MAX,
    ObjectEntry,
    RangeGroup,
    decode_objects,
    decode_ranges,
)
from streamlog.format.checkpoint.tail import ObjectBlockIndex, RangeBlockIndex
from streamlog.metadata.checkpoint.merge_objects import ObjectBlocks, ObjectMerger
from streamlog.metadata.checkpoint.merge_ranges import (
    EVERYTHING,
    RangeBlocks,
    RangeChange,
    RangeMerger,
    cut_group,
    group_of,
    groups_from,
    overlay_groups,
    ranges_in,
)
from streamlog.metadata.fold.overlay import ObjectRange, overlaid
from streamlog.runtime.concurrency.steps import run

Model = dict[int, list[ObjectRange]]


def merge(
    old: RangeBlocks, changes: dict[int, RangeChange], rng: random.Random
) -> tuple[RangeBlocks, RangeMerger]:
    merger = RangeMerger(old.index, old.ranges, changes, "file")
    data, first = b"".join(old.parts), 0
    while first < len(old.index):
        last = min(len(old.index), first + rng.randint(1, 5))
        part = data[old.index.positions[first] : old.index.positions[last]]
        run(merger.feed(part, first, last))
        first = last
    return run(merger.finish()), merger


def read(blocks: RangeBlocks) -> Model:
    by_stream: Model = {}
    for number, part in enumerate(blocks.parts[1:]):
        assert len(part) <= BLOCK_BYTES_MAX
        groups = decode_ranges(part)
        first = (blocks.index.streams[number], blocks.index.starts[number])
        assert (groups[0].stream_id, groups[0].start) == first
        for group in groups:
            at, ranges = group.start, by_stream.setdefault(group.stream_id, [])
            for count, object_id in zip(group.counts, group.objects, strict=True):
                assert not ranges or ranges[-1].end <= at
                ranges.append(ObjectRange(at, at + count, object_id))
                at += count
    assert list(by_stream) == sorted(by_stream)
    return by_stream


def random_changes(
    rng: random.Random, model: Model, streams: int, next_object: int
) -> dict[int, RangeChange]:
    changes: dict[int, RangeChange] = {}
    for stream_id in rng.sample(range(1, streams * 3 + 1), rng.randint(0, streams)):
        change, ranges = RangeChange(), model.setdefault(stream_id, [])
        at = ranges[-1].end if ranges else rng.randint(0, 5)
        if ranges and rng.random() < 0.3:
            change.cut = EVERYTHING if rng.random() < 0.2 else rng.randint(0, at)
        if change.cut != EVERYTHING:
            added = array("Q", [at])
            for _ in range(3000 if rng.random() < 0.02 else rng.randint(1, 3)):
                end, next_object = at + rng.randint(1, 9), next_object + 1
                added.extend((end, next_object))
                ranges.append(ObjectRange(at, end, next_object))
                at = end
            change.added.append(group_of(stream_id, added))
        model[stream_id] = [one for one in ranges if one.end > change.cut]
        changes[stream_id] = change
    return changes


@pytest.mark.parametrize("seed", range(12))
def test_ranges_merge_as_in_a_dict(seed: int) -> None:
    rng, model, blocks = random.Random(seed), Model(), RangeBlocks()
    for turn in range(5):
        streams = rng.choice([1, 3, 30, 400])
        changes = random_changes(rng, model, streams, 10_000 * (turn + 1))
        blocks, _ = merge(blocks, changes, rng)
        expected = {stream_id: ranges for stream_id, ranges in model.items() if ranges}
        assert read(blocks) == expected
        assert blocks.ranges == sum(map(len, expected.values()))


def many(streams: int, each: int) -> RangeBlocks:
    changes = {}
    for stream_id in range(streams):
        ranges = array("Q", [0])
        for i in range(each):
            ranges.extend((i + 1, stream_id * each + i))
        changes[stream_id] = RangeChange(added=[group_of(stream_id, ranges)])
    return merge(RangeBlocks(), changes, random.Random(0))[0]


def overlaid_changes(
    rng: random.Random, model: Model, streams: int, next_object: int
) -> dict[int, RangeChange]:
    """Runs of whole old ranges replaced anywhere, appends and cuts; gaps between the new groups."""
    changes: dict[int, RangeChange] = {}
    for stream_id in rng.sample(range(1, streams * 3 + 1), rng.randint(0, streams)):
        change, ranges = RangeChange(), model.setdefault(stream_id, [])
        new: list[ObjectRange] = []
        index = 0
        while index < len(ranges):
            taken = rng.choice([1, 2, 7, 800])
            run_of = ranges[index : index + taken]
            if rng.random() < 0.3:
                next_object += 1
                new.append(ObjectRange(run_of[0].start, run_of[-1].end, next_object))
            index += taken
        at = ranges[-1].end if ranges else rng.randint(0, 5)
        for _ in range(2000 if rng.random() < 0.1 else rng.randint(0, 3)):
            next_object += 1
            new.append(ObjectRange(at, at + rng.randint(1, 9), next_object))
            at = new[-1].end
        if ranges and rng.random() < 0.3:
            change.cut = EVERYTHING if rng.random() < 0.2 else rng.randint(0, at)
        change.added = groups_from(stream_id, new)
        model[stream_id] = [one for one in overlaid(ranges, new) if one.end > change.cut]
        changes[stream_id] = change
    return changes


@pytest.mark.parametrize("seed", range(12))
def test_overlaid_ranges_replace_old_ones(seed: int) -> None:
    rng, model, blocks = random.Random(seed), Model(), RangeBlocks()
    for turn in range(8):
        streams = rng.choice([1, 3, 30])
        changes = overlaid_changes(rng, model, streams, 100_000 * (turn + 1))
        blocks, _ = merge(blocks, changes, rng)
        expected = {stream_id: ranges for stream_id, ranges in model.items() if ranges}
        assert read(blocks) == expected
        assert blocks.ranges == sum(map(len, expected.values()))


def test_a_replaced_run_touches_only_the_blocks_that_it_covers() -> None:
    old = many(2, 30_000)
    assert len(old.index) > 40
    added = groups_from(0, [ObjectRange(5000, 9000, 7), ObjectRange(20_000, 20_001, 8)])
    _, merger = merge(old, {0: RangeChange(added=added)}, random.Random(0))
    assert merger.parsed_blocks <= 6


def test_newer_groups_hide_older_ones() -> None:
    older = groups_from(1, [ObjectRange(0, 5, 1), ObjectRange(5, 9, 2), ObjectRange(20, 30, 3)])
    newer = groups_from(1, [ObjectRange(5, 9, 4), ObjectRange(12, 14, 5)])
    merged = [one for group in overlay_groups(older, newer) for one in ranges_in(group)]
    assert merged == [(0, 5, 1), (5, 9, 4), (12, 14, 5), (20, 30, 3)]
    behind = groups_from(1, [ObjectRange(30, 31, 6)])
    assert overlay_groups(older, behind) == [*older, *behind]


def test_blocks_without_a_change_are_copied_unread() -> None:
    old = many(300, 100)
    added = RangeGroup(7, 100, array("I", [1]), array("Q", [99_999]))
    change = RangeChange(added=[added])
    new, merger = merge(old, {7: change}, random.Random(0))
    assert len(old.index) > 20
    assert merger.parsed_blocks == 1
    untouched = [part for part in new.parts if bytes(part) in set(map(bytes, old.parts))]
    assert len(untouched) == len(old.parts) - 1


def test_small_changes_do_not_shatter_the_blocks() -> None:
    blocks, rng = many(300, 100), random.Random(4)
    ends = [100] * 300
    for turn in range(60):
        stream_id = rng.randrange(300)
        added = RangeGroup(stream_id, ends[stream_id], array("I", [1]), array("Q", [turn]))
        ends[stream_id] += 1
        change = RangeChange(cut=rng.randrange(50), added=[added])
        blocks, _ = merge(blocks, {stream_id: change}, rng)
    sizes = [len(part) for part in blocks.parts[1:]]
    assert sum(sizes) / len(sizes) > BLOCK_BYTES_MAX / 3


def test_a_damaged_block_is_corrupt_and_named() -> None:
    old = many(10, 10)
    damaged = bytearray(old.parts[1])
    damaged[50] ^= 1
    merger = RangeMerger(old.index, old.ranges, {3: RangeChange(cut=5)}, "checkpoint/1.1/4")
    with pytest.raises(Corrupt, match=r"checkpoint/1\.1/4") as caught:
        run(merger.feed(bytes(damaged), 0, 1))
    assert caught.value.fields["object_key"] == "checkpoint/1.1/4"


def test_cut_group() -> None:
    group = RangeGroup(1, 10, array("I", [5, 5, 5]), array("Q", [1, 2, 3]))
    assert cut_group(group, 10) is group
    assert cut_group(group, 14) is group
    cut = cut_group(group, 15)
    assert cut is not None
    assert (cut.start, list(cut.objects)) == (15, [2, 3])
    cut = cut_group(group, 24)
    assert cut is not None
    assert (cut.start, list(cut.objects)) == (20, [3])
    assert cut_group(group, 25) is None


def entry(object_id: int, live: int) -> ObjectEntry:
    return ObjectEntry(object_id, 1, 2, 3, 4, live, 0)


@pytest.mark.parametrize("seed", range(8))
def test_objects_merge_as_in_a_dict(seed: int) -> None:
    rng = random.Random(seed)
    model: dict[int, ObjectEntry] = {}
    index, count, data, position = ObjectBlockIndex(), 0, b"", 8
    index.positions[0] = position
    for turn in range(6):
        changes: dict[int, ObjectEntry | None] = {}
        for object_id in rng.sample(range(6000), rng.choice([0, 1, 10, 2000])):
            changes[object_id] = None if rng.random() < 0.2 else entry(object_id, turn + 1)
        for object_id, change in changes.items():
            if change is None:
                model.pop(object_id, None)
            else:
                model[object_id] = change
        merger = ObjectMerger(index, count, changes, "file", 8)
        first = 0
        while first < len(index):
            last = min(len(index), first + rng.randint(1, 3))
            start, end = index.positions[first] - 8, index.positions[last] - 8
            run(merger.feed(data[start:end], first, last))
            first = last
        blocks: ObjectBlocks = run(merger.finish())
        index, count, data = blocks.index, blocks.objects, b"".join(blocks.parts)
        rows = [row for part in blocks.parts for row in decode_objects(part).rows()]
        assert rows == [model[object_id] for object_id in sorted(model)]
        assert count == len(model)
        assert all(len(part) <= BLOCK_BYTES_MAX for part in blocks.parts)
        assert [decode_objects(part).ids[0] for part in blocks.parts] == list(index.ids)


def test_the_index_finds_the_only_block() -> None:
    index = RangeBlockIndex(
        array("Q", [3, 3, 3, 8]), array("Q", [0, 10, 20, 5]), array("Q", [0] * 5)
    )
    assert [index.block_of(3, at) for at in (0, 9, 10, 25)] == [0, 0, 1, 2]
    assert index.block_of(2, 7) == -1
    assert index.block_of(5, 0) == 2
    assert [index.block_of(8, at) for at in (0, 5)] == [2, 3]
