"""What copiers said of their transactions, held against what can be read, read committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Place = tuple[int, int]
"""Partition, offset."""


class Kind(StrEnum):
    LOST = "lost"
    """Of a transaction that was told as committed, or copied by nobody in the end."""
    DOUBLED = "doubled"
    REORDERED = "reordered"
    CHANGED = "changed"
    """A copy with another value than its original."""
    MADE_UP = "made up"
    """A copy of what is not there, or of no known transaction."""
    ABORTED_SEEN = "aborted, and seen"
    """Of a transaction that nobody asked to commit, or that was told as aborted."""
    TORN = "torn"
    """Some records of a transaction are there, others are not."""
    READ_OTHERWISE = "read otherwise"
    """Handed to the consumer that read through the kills, and not what is there in the end."""
    HELD_BACK = "held back"
    """In the end a partition's last stable offset is not its high watermark."""


class Finding(NamedTuple):
    kind: Kind
    text: str


class Read(NamedTuple):
    """One record that a read-committed consumer was handed."""

    partition: int
    offset: int
    value: bytes
    original: Place | None
    by: str
    """The transactional id that copied it; empty for markers."""
    transaction: str
    """Empty in the source, which no transaction wrote."""


@dataclass(slots=True)
class Told:
    """What all copiers of a topic said."""

    began: set[str] = field(default_factory=set)
    committing: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)


def check_copy(source: Sequence[Read], copied: Sequence[Read], told: Told) -> list[Finding]:
    """All that is wrong with a topic that copiers made from another one."""
    return [
        *_check_copies(source, copied),
        *_check_order(copied),
        *_check_transactions(copied, told),
    ]


def _check_copies(source: Sequence[Read], copied: Sequence[Read]) -> Iterable[Finding]:
    originals = {(one.partition, one.offset): one.value for one in source}
    copies: dict[Place, list[Read]] = defaultdict(list)
    for one in copied:
        if one.original is not None:
            copies[one.original].append(one)
    for place, value in originals.items():
        found = copies.pop(place, [])
        if not found:
            yield Finding(Kind.LOST, f"{place} was not copied")
        if len(found) > 1:
            yield Finding(Kind.DOUBLED, f"{place} was copied to {[one[:2] for one in found]}")
        for one in found:
            if one.value != value:
                yield Finding(Kind.CHANGED, f"{place} is {value!r}, its copy {one.value!r}")
    for place in copies:
        yield Finding(Kind.MADE_UP, f"a copy of {place}, where nothing is")


def _check_order(copied: Sequence[Read]) -> Iterable[Finding]:
    """Each partition has the copies of one input partition in its order."""
    last: dict[tuple[int, int], int] = {}
    for one in sorted(copied):
        if one.original is None:
            continue
        line = one.partition, one.original[0]
        if one.original[1] < last.get(line, -1):
            text = f"the copy of {one.original} at {one[:2]} comes behind that of {last[line]}"
            yield Finding(Kind.REORDERED, text)
        last[line] = max(one.original[1], last.get(line, -1))


def _check_transactions(copied: Sequence[Read], told: Told) -> Iterable[Finding]:
    records: dict[str, int] = defaultdict(int)
    markers: dict[str, list[Read]] = defaultdict(list)
    for one in copied:
        if one.original is None:
            markers[one.transaction].append(one)
        else:
            records[one.transaction] += 1
    for name in sorted(records.keys() | markers.keys()):
        if name not in told.began:
            yield Finding(Kind.MADE_UP, f"no copier began {name}")
        elif name not in told.committing:
            yield Finding(Kind.ABORTED_SEEN, f"nobody asked to commit {name}")
        elif name in told.aborted:
            yield Finding(Kind.ABORTED_SEEN, f"{name} was told as aborted")
        yield from _check_whole(name, records[name], markers[name])
    for name in sorted(told.committed - markers.keys()):
        yield Finding(Kind.LOST, f"{name} was told as committed")


def _check_whole(name: str, records: int, markers: Sequence[Read]) -> Iterable[Finding]:
    if not markers:
        yield Finding(Kind.TORN, f"{name} has {records} records, and no marker")
        return
    _, wanted_records, wanted_markers = markers[0].value.decode().split(" ")
    if (records, len(markers)) != (int(wanted_records), int(wanted_markers)):
        text = f"{records} of {wanted_records} records, {len(markers)} of {wanted_markers} markers"
        yield Finding(Kind.TORN, f"{name} has {text}")
    if len({one.partition for one in markers}) < len(markers):
        yield Finding(Kind.DOUBLED, f"two markers of {name} are in one partition")


def check_reader(seen: Sequence[Read], stored: Sequence[Read]) -> list[Finding]:
    """What a consumer was handed through the kills, against what is there in the end."""
    return [
        Finding(Kind.READ_OTHERWISE, f"partition {number}: {text}")
        for number in sorted({one.partition for one in [*seen, *stored]})
        for text in _first_difference(_of(seen, number), _of(stored, number))
    ]


def _of(records: Sequence[Read], partition: int) -> list[Read]:
    """In the order in which they were handed out."""
    return [one for one in records if one.partition == partition]


def _first_difference(seen: Sequence[Read], stored: Sequence[Read]) -> Iterable[str]:
    for first, second in zip(seen, stored, strict=False):
        if first != second:
            yield f"{first} was read, {second} is there"
            return
    if len(seen) != len(stored):
        yield f"{len(seen)} records were read, {len(stored)} are there"


def check_ends(topic: str, ends: Mapping[int, tuple[int, int]]) -> list[Finding]:
    """`ends`: last stable offset and high watermark of each partition, when all is over."""
    return [
        Finding(Kind.HELD_BACK, f"{topic}-{number}: stable to {stable}, written to {end}")
        for number, (stable, end) in ends.items()
        if stable != end
    ]
