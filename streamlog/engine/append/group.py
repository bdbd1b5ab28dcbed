"""A run of sequenced appends that become durable, or stored, together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from streamlog.engine.stream_core import StreamAppend, StreamCore
from streamlog.model.batch import AppendResult
from streamlog.runtime.concurrency.run_ack import RunAck

ITEMS_MAX = 16_384
"""Appends in one group: twice as many streams fit into a commit record of usual size."""


class Group:
    """Sequenced appends in order. `wal_sequence`: the WAL's groups up to it may be released once
    the appends are stored; 0: none.

    `freed_bytes`: the part of their charges that was released early (UploadCredit).
    `marks`: (n, sequence) of each group that was merged into this one: the first n items allow the
    WAL to release up to `sequence`.
    """

    __slots__ = ("freed_bytes", "items", "marks", "opened_at", "size_bytes", "wal_sequence")

    def __init__(self) -> None:
        self.items: list[StreamAppend] = []
        self.size_bytes = 0
        self.opened_at = 0.0
        self.wal_sequence = 0
        self.freed_bytes = 0
        self.marks: list[tuple[int, int]] = []

    def extend(self, other: Group) -> None:
        """Appends the items of the group that follows."""
        if not self.items:
            self.opened_at = other.opened_at
        self.items.extend(other.items)
        self.size_bytes += other.size_bytes
        # A group whose streams were all lost was never written and has no sequence of its own.
        self.wal_sequence = max(self.wal_sequence, other.wal_sequence)
        self.marks.append((len(self.items), self.wal_sequence))

    def split(self, bytes_max: int) -> tuple[Group, Group]:
        """The first items, at most `bytes_max` but at least one, and the rest, which may be empty.
        Each part carries the WAL sequence that it alone allows to be released."""
        first, rest = Group(), Group()
        count = 0
        for item in self.items:
            if count and first.size_bytes + item.size_bytes > bytes_max:
                break
            first.size_bytes += item.size_bytes
            count += 1
        first.items, rest.items = self.items[:count], self.items[count:]
        first.opened_at = rest.opened_at = self.opened_at
        rest.size_bytes = self.size_bytes - first.size_bytes
        for end, sequence in self.marks:
            if end <= count:
                first.wal_sequence = sequence
            else:
                rest.marks.append((end - count, sequence))
        if rest.items:
            rest.wal_sequence = self.wal_sequence
        else:
            first.wal_sequence = self.wal_sequence
        return first, rest


TRACE_IDS_MAX = 16
"""Trace ids in one log line; a group may hold appends of thousands of requests."""


def trace_ids(appends: Iterable[StreamAppend]) -> list[str]:
    """Trace ids of the first requests among the appends, for log lines."""
    ids: dict[str, None] = {}
    for append in appends:
        if append.trace_id:
            ids[append.trace_id] = None
            if len(ids) == TRACE_IDS_MAX:
                break
    return list(ids)


class Sink(Protocol):
    """Makes sequenced appends durable."""

    def add(self, append: StreamAppend) -> None: ...

    def add_run(self, appends: Sequence[StreamAppend], size_bytes: int) -> None:
        """As `add` for each, in order; `size_bytes`: of all together."""
        ...

    def unconfirmed(self) -> Iterable[Group]:
        """Groups with appends that are not answered yet, oldest first."""
        ...


def confirm(group: Group) -> None:
    """Moves the confirm offsets of a durable group's streams, and answers its appends in order.

    Appends to streams that were lost meanwhile fail here: `fail_lost_appends` will not see this
    group again.
    """
    touched: dict[StreamCore, None] = {}
    runs: list[RunAck] = []
    run: RunAck | None = None
    durable = 0
    """Appends of `run` that were seen in a row."""
    for append in group.items:
        core, entry, future = append.core, append.entry, append.future
        if append.run is not run:
            if run is not None:
                run.count(durable)
                runs.append(run)
            run, durable = append.run, 0
        if core.stop is not None:
            append.fail(core.stop)
            continue
        base = entry.base_offset
        end = base + entry.record_count
        # A replayed append was confirmed before.
        if end > core.confirm:
            core.confirm = end
        touched[core] = None
        if run is not None:
            durable += 1
        elif future is not None and not future.done():
            future.set_result(AppendResult(base, end))
    if run is not None:
        run.count(durable)
        runs.append(run)
    for core in touched:
        core.confirmed()
    # Last, since logs answer their callers now, and not a turn of the loop later.
    for run in runs:
        run.tell()
