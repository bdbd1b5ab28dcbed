"""One run: produce rounds, kill -9 with requests under way, restart, produce on, fetch, compare.

1. A node starts on an empty folder; every file gets a topic of one partition.
2. Rounds of all lines of all files are produced; after half of the bytes rounds go out without
   waiting, and as soon as one of their sends is acknowledged the node gets SIGKILL.
3. Sends that are not acknowledged then are counted. A kill that found none is made once more;
   if none of several found any, the run has failed.
4. The node starts again on the same data and port. The producer, the same one throughout, sends
   again what was not acknowledged; its sequence numbers keep that from being stored twice.
5. Every topic is fetched from its first offset and compared with what was sent, line by line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamlog.client import Admin, Consumer, Producer
from streamlog.demo.corpus import Source
from streamlog.demo.node import NodeProcess
from streamlog.demo.writer import RoundWriter
from streamlog.errors import StreamlogError

FETCH_TIMEOUT_S = 30.0
KILL_ATTEMPTS = 5

Progress = Callable[[str], None]


class KillHitNothing(StreamlogError):
    """Every request was acknowledged at each kill of the node: the run proves nothing."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of one run. `produce_s` leaves out the time while the node was down."""

    wal: str
    records: int
    size_bytes: int
    produce_s: float
    fetch_s: float
    objects: int
    unacknowledged_records: int
    restart_s: float
    recover_s: float
    duplicates: int
    lost: int
    difference: str = ""

    @property
    def is_good(self) -> bool:
        return not (self.duplicates or self.lost or self.difference)

    @property
    def mb_per_s_in(self) -> float:
        return self.size_bytes / 1e6 / self.produce_s

    @property
    def mb_per_s_out(self) -> float:
        return self.size_bytes / 1e6 / self.fetch_s


@dataclass(frozen=True, slots=True)
class CrashResult:
    unacknowledged_records: int
    restart_s: float
    recover_s: float


def run(
    sources: Sequence[Source],
    folder: Path,
    *,
    wal: str,
    size_bytes: int,
    progress: Progress,
    store: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> DemoResult:
    """`store`: a URL for the objects in place of the folder; `environment`: its credentials.

    Errors: KillHitNothing, and what the node or the client raise.
    """
    node = NodeProcess(folder, wal=wal, store=store, environment=environment)
    try:
        took_s = node.start()
        progress(f"node {node.pid} serves at {node.server} after {took_s:.1f} s")
        with Admin(node.server) as admin:
            for source in sources:
                admin.create_topic(source.topic, partitions=1)
        progress(f"{len(sources)} topics made; producing")
        begun = time.monotonic()
        with Producer(node.server, delivery_timeout_ms=60_000) as producer:
            writer = RoundWriter(producer, sources)
            writer.write_until(size_bytes // 2)
            progress(f"{writer.bytes_acknowledged / 1e6:.0f} MB are acknowledged")
            interrupted = crash(node, writer, progress)
            writer.write_until(size_bytes)
        produce_s = time.monotonic() - begun - interrupted.recover_s
        progress(f"{writer.records_sent} records are acknowledged; fetching all of them")
        begun = time.monotonic()
        counts = [_compare(node.server, source, writer.rounds) for source in sources]
        fetch_s = time.monotonic() - begun
        with Admin(node.server) as admin:
            objects = sum(1 for _ in admin.list_objects())
        node.stop()
    finally:
        node.discard()
    return DemoResult(
        wal=wal,
        records=writer.records_sent,
        size_bytes=writer.bytes_sent,
        produce_s=produce_s,
        fetch_s=fetch_s,
        objects=objects,
        unacknowledged_records=interrupted.unacknowledged_records,
        restart_s=interrupted.restart_s,
        recover_s=interrupted.recover_s,
        duplicates=sum(max(0, count.records - count.expected) for count in counts),
        lost=sum(max(0, count.expected - count.records) for count in counts),
        difference=next((count.difference for count in counts if count.difference), ""),
    )


def crash(node: NodeProcess, writer: RoundWriter, progress: Progress) -> CrashResult:
    """SIGKILL with sends under way; ends at the first acknowledgement of the restarted node.

    Where all sends are answered before the signal arrives, the node is started and killed again.
    """
    for _ in range(KILL_ATTEMPTS):
        pid = node.pid
        writer.send_ahead()
        writer.await_one()
        requests = writer.await_request()
        node.kill()
        away_since = time.monotonic()
        unacknowledged = writer.records_unacknowledged()
        is_hit = requests > 0 and unacknowledged > 0
        if is_hit:
            progress(
                f"kill -9 {pid}: {requests} requests were under way, "
                f"{unacknowledged} records sent and not acknowledged"
            )
        else:
            progress(f"kill -9 {pid}: every request was acknowledged before it; once more")
        restart_s = node.start()
        progress(f"node {node.pid} serves the same data after {restart_s:.1f} s; producing on")
        if is_hit:
            writer.await_unacknowledged()
            return CrashResult(unacknowledged, restart_s, time.monotonic() - away_since)
    raise KillHitNothing(
        f"every request was acknowledged before each of {KILL_ATTEMPTS} kills; run it once more"
    )


@dataclass(frozen=True, slots=True)
class _Comparison:
    records: int
    expected: int
    difference: str


def _compare(server: str, source: Source, rounds: int) -> _Comparison:
    """Fetches a topic and compares it with `rounds` times the source's lines, in order."""
    expected = len(source.lines) * rounds
    tp = (source.topic, 0)
    read = 0
    difference = ""
    with Consumer(server) as consumer:
        consumer.assign([tp])
        first = consumer.beginning_offsets([tp])[tp]
        end = consumer.end_offsets([tp])[tp]
        consumer.seek(*tp, first)
        position = first
        while position < end:
            batches = consumer.poll_batches(FETCH_TIMEOUT_S)
            if not batches:
                raise StreamlogError(
                    f"{source.topic} ends at {end}, but nothing came after offset {position} "
                    f"within {FETCH_TIMEOUT_S:g} s"
                )
            for batch in batches:
                values = batch.values()
                difference = difference or _difference(source, read, values)
                read += len(values)
                position = batch.next_offset
    return _Comparison(read, expected, difference)


def _difference(source: Source, begin: int, values: Sequence[bytes | None]) -> str:
    """Where `values`, the topic's records from number `begin` on, differ from the lines."""
    index = first_mismatch(source.lines, begin, values)
    if index is None:
        return ""
    number = begin + index
    line = number % len(source.lines)
    return (
        f"{source.topic} record {number} (round {number // len(source.lines) + 1}, "
        f"{source.path.name} line {line + 1}): "
        f"sent {source.lines[line][:80]!r}, got {(values[index] or b'')[:80]!r}"
    )


def first_mismatch(
    lines: Sequence[bytes], begin: int, values: Sequence[bytes | None]
) -> int | None:
    """Index of the first of `values` that is not line `begin + index` of the lines, repeated."""
    done = 0
    while done < len(values):
        begin_line = (begin + done) % len(lines)
        run = lines[begin_line : begin_line + len(values) - done]
        if list(values[done : done + len(run)]) != run:
            return done + next(
                index for index, line in enumerate(run) if values[done + index] != line
            )
        done += len(run)
    return None
