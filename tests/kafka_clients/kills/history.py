"""What writers were told, held against what is stored: every acknowledged record once, in order.

A record is named by its writer, its partition and its number; a writer gives every partition the
numbers 0, 1, 2 and so on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Place = tuple[int, int]
"""Partition, offset."""
Record = tuple[int, int]
"""Partition, number."""


class Kind(StrEnum):
    LOST = "lost"
    """Acknowledged, and nowhere in its partition."""
    ELSEWHERE = "elsewhere"
    """Stored, but not at an offset that was acknowledged."""
    DOUBLED = "doubled"
    """Stored more than once, acknowledged or not."""
    REORDERED = "reordered"
    """Stored behind a record that was sent after it."""
    UNSENT = "unsent"
    """Stored, and sent by none of the writers."""
    UNANSWERED = "unanswered"
    """Sent, and neither acknowledged nor refused."""
    ANSWERED_TWICE = "answered twice"
    REFUSED = "refused"
    """Given up by the client: brokers that come back within its time are no reason to."""
    READ_OTHERWISE = "read otherwise"
    """Handed to the consumer that read through the kills, and not what is stored, or not at all."""


class Finding(NamedTuple):
    kind: Kind
    writer: str
    """Or the consumer."""
    text: str


@dataclass(slots=True)
class History:
    """`sent`: how many records each partition was given."""

    writer: str
    partitions: int
    sent: int = 0
    acknowledged: list[tuple[Record, int]] = field(default_factory=list)
    """Records and their offsets, in the order of the answers."""
    refused: list[tuple[Record, str]] = field(default_factory=list)

    @property
    def unanswered(self) -> int:
        answered = len(self.acknowledged) + len(self.refused)
        return self.sent * self.partitions - answered


def check(histories: Sequence[History], stored: Mapping[Place, bytes]) -> list[Finding]:
    """All that is wrong; values are "WRITER NUMBER", as the programs write them."""
    found: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    findings = []
    known = {history.writer: history for history in histories}
    for (partition, offset), value in sorted(stored.items()):
        writer, _, number = value.decode(errors="replace").rpartition(" ")
        history = known.get(writer)
        if history is None or not number.isdecimal() or int(number) >= history.sent:
            text = f"{value!r} at offset {offset} of partition {partition}"
            findings.append(Finding(Kind.UNSENT, writer, text))
        else:
            found[writer][partition].append((int(number), offset))
    for history in histories:
        findings += _check_stored(history.writer, found[history.writer])
        findings += _check_answers(history, found[history.writer])
    return findings


def _check_stored(
    writer: str, partitions: Mapping[int, Sequence[tuple[int, int]]]
) -> Iterator[Finding]:
    """A second copy is doubled, wherever it stands; the order is that of first copies."""
    for partition, entries in partitions.items():
        first: dict[int, int] = {}
        highest = -1
        for number, offset in entries:
            where = f"{number} at offset {offset} of partition {partition}"
            if number in first:
                yield Finding(Kind.DOUBLED, writer, f"{where} and at {first[number]}")
                continue
            first[number] = offset
            if number < highest:
                yield Finding(Kind.REORDERED, writer, f"{where}, behind {highest}")
            highest = max(highest, number)


def _check_answers(
    history: History, partitions: Mapping[int, Sequence[tuple[int, int]]]
) -> Iterator[Finding]:
    writer = history.writer
    offsets: dict[Record, list[int]] = defaultdict(list)
    for partition, entries in partitions.items():
        for number, offset in entries:
            offsets[partition, number].append(offset)
    waiting = {
        (partition, number)
        for partition in range(history.partitions)
        for number in range(history.sent)
    }
    for record, words in history.refused:
        waiting.discard(record)
        yield Finding(Kind.REFUSED, writer, f"{_name(record)}: {words}")
    for record, offset in history.acknowledged:
        if record not in waiting:
            yield Finding(Kind.ANSWERED_TWICE, writer, f"{_name(record)}, now with {offset}")
        waiting.discard(record)
        if record not in offsets:
            yield Finding(Kind.LOST, writer, f"{_name(record)}, acknowledged at {offset}")
        elif offset not in offsets[record]:
            text = f"{_name(record)}, acknowledged at {offset}, is at {offsets[record]}"
            yield Finding(Kind.ELSEWHERE, writer, text)
    for record in sorted(waiting):
        yield Finding(Kind.UNANSWERED, writer, _name(record))


def _name(record: Record) -> str:
    return f"{record[1]} of partition {record[0]}"


def check_reader(
    reader: str, seen: Mapping[Place, bytes], stored: Mapping[Place, bytes]
) -> list[Finding]:
    """What a consumer was handed, against what is stored in the end."""
    return [
        Finding(Kind.READ_OTHERWISE, reader, f"{place}: {seen.get(place)!r}, {stored.get(place)!r}")
        for place in sorted(seen.keys() | stored.keys())
        if seen.get(place) != stored.get(place)
    ]
