"""`streamlog bench`: load on a node, and a check that it keeps the records it acknowledged."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

import click

from streamlog.cli.lazy import CommandGroup
from streamlog.cli.output import emit, field_list, note
from streamlog.cli.parsing import INT32_MAX, FiniteRange
from streamlog.cli.progress import RecordProgress
from streamlog.cli.records.chain import RECORD_BYTES_MIN, ChainReader, ChainWriter
from streamlog.cli.records.record_copy import batches_until
from streamlog.cli.remote import admin
from streamlog.cli.remote import consumer as open_consumer
from streamlog.cli.remote import producer as open_producer
from streamlog.cli.standard_streams import stderr_is_terminal
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.errors import StreamlogError, TopicAlreadyExists

BATCH_RECORDS_BYTES = 1 << 20
"""Records are handed to the client in lists of about this many bytes."""

IN_FLIGHT_LISTS = 16
TOPIC_DEFAULT = "bench"

_topic = click.option("--topic", default=TOPIC_DEFAULT, show_default=True)
_mib = click.option("--mib", type=FiniteRange(0.01, INT32_MAX), default=256, show_default=True)
_partitions = click.option(
    "--partitions",
    type=click.IntRange(1, INT32_MAX),
    default=4,
    show_default=True,
    help="Of the topic, where the command makes it.",
)
_record_bytes = click.option(
    "--record-bytes",
    type=click.IntRange(min=RECORD_BYTES_MIN, max=900_000),
    default=1024,
    show_default=True,
)
_compression = click.option(
    "--compression",
    type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
    default="none",
    show_default=True,
)


@click.group(cls=CommandGroup)
def bench() -> None:
    """Put load on a node, and check what it keeps."""


def _prepared(state: State, topic: str, partitions: int) -> int:
    """Makes the topic unless it exists; returns its number of partitions."""
    with admin(state) as client:
        try:
            client.create_topic(topic, partitions=partitions)
        except TopicAlreadyExists:
            note(f"topic {topic} is there already; it is used as it is")
        return len(client.describe_topic(topic).partitions)


@bench.command()
@_topic
@_partitions
@_mib
@_record_bytes
@_compression
@click.option("--seed", type=int, default=0, show_default=True)
@remote_options
@pass_state
def produce(
    state: State,
    topic: str,
    partitions: int,
    mib: float,
    record_bytes: int,
    compression: str,
    seed: int,
) -> None:
    """Produce records as fast as the node takes them; durable acks, idempotent.

    Latency is from handing a list of records to the client until all of them are acknowledged.
    """
    from random import Random

    count = _prepared(state, topic, partitions)
    goal = int(mib * (1 << 20))
    per_list = -(-min(BATCH_RECORDS_BYTES, goal) // record_bytes)
    values = [Random(seed).randbytes(record_bytes)] * per_list
    records = 0
    latencies_s: list[float] = []
    pending: deque[tuple[Any, float]] = deque()

    def await_oldest() -> None:
        sent, sent_at = pending.popleft()
        sent.result()
        latencies_s.append(time.monotonic() - sent_at)

    progress = RecordProgress(is_shown=stderr_is_terminal())
    begun = time.monotonic()
    with open_producer(state, compression) as producer:
        while records * record_bytes < goal:
            progress.show(records, records * record_bytes)
            partition = (records // per_list) % count
            now = time.monotonic()
            pending.append((producer.send_many(topic, values, partition=partition), now))
            records += per_list
            if len(pending) > IN_FLIGHT_LISTS:
                await_oldest()
        while pending:
            await_oldest()
    progress.done(records, records * record_bytes)
    _report(state, records, records * record_bytes, time.monotonic() - begun, latencies_s)


@bench.command()
@_topic
@remote_options
@pass_state
def consume(state: State, topic: str) -> None:
    """Fetch a topic from its start to its end as fast as it comes; batches are not decoded."""
    records = size_bytes = 0
    with admin(state) as client:
        chosen = [
            (topic, partition.partition) for partition in client.describe_topic(topic).partitions
        ]
    with open_consumer(state) as consumer:
        consumer.assign(chosen)
        starts = consumer.beginning_offsets(chosen)
        left = {tp: end for tp, end in consumer.end_offsets(chosen).items() if end > starts[tp]}
        for tp in chosen:
            consumer.seek(*tp, starts[tp])
        begun = time.monotonic()
        progress = RecordProgress(is_shown=stderr_is_terminal())
        for batch in batches_until(consumer, left, state.timeout_s):
            records += batch.record_count
            size_bytes += len(batch.data)
            progress.show(records, size_bytes)
        progress.done(records, size_bytes)
        elapsed_s = time.monotonic() - begun
    _report(state, records, size_bytes, elapsed_s, [])


@bench.command()
@click.option("--topic", default="bench-verify", show_default=True)
@_partitions
@click.option("--mib", type=FiniteRange(0.01, INT32_MAX), default=64, show_default=True)
@_record_bytes
@_compression
@click.option(
    "--phase",
    type=click.Choice(("both", "write", "check")),
    default="both",
    show_default=True,
    help="Write now and check later, after whatever you did to the node in between.",
)
@remote_options
@pass_state
def verify(
    state: State,
    topic: str,
    partitions: int,
    mib: float,
    record_bytes: int,
    compression: str,
    phase: str,
) -> None:
    """Write a hash chain into each partition of a new topic, read it back and check it.

    A record that is lost, doubled, out of order or changed breaks its chain; the exit code is 1
    and the place is named. `--phase check` checks what an earlier run wrote to the topic.
    """
    if phase != "check":
        written = _write_chains(state, topic, partitions, mib, record_bytes, compression)
        note(f"{written} records are written and acknowledged")
    if phase != "write":
        _check_chains(state, topic, expected=None if phase == "check" else written)


def _write_chains(
    state: State, topic: str, partitions: int, mib: float, record_bytes: int, compression: str
) -> int:
    with admin(state) as client:
        client.create_topic(topic, partitions=partitions)
    chains = [
        ChainWriter(topic, partition, record_bytes=record_bytes) for partition in range(partitions)
    ]
    per_list = max(1, (BATCH_RECORDS_BYTES >> 2) // record_bytes)
    goal = int(mib * (1 << 20)) // record_bytes
    pending: deque[Any] = deque()
    progress = RecordProgress(is_shown=stderr_is_terminal())
    with open_producer(state, compression) as producer:
        while (written := sum(chain.count for chain in chains)) < goal:
            progress.show(written, written * record_bytes)
            for partition, chain in enumerate(chains):
                values = chain.values(per_list)
                pending.append(producer.send_many(topic, values, partition=partition))
            while len(pending) > IN_FLIGHT_LISTS:
                pending.popleft().result()
        for sent in pending:
            sent.result()
    progress.done(goal, goal * record_bytes)
    return sum(chain.count for chain in chains)


def _check_chains(state: State, topic: str, *, expected: int | None) -> None:
    with admin(state) as client:
        chosen = [
            (topic, partition.partition) for partition in client.describe_topic(topic).partitions
        ]
    chains = {tp: ChainReader(*tp) for tp in chosen}
    with open_consumer(state) as consumer:
        consumer.assign(chosen)
        starts = consumer.beginning_offsets(chosen)
        left = {tp: end for tp, end in consumer.end_offsets(chosen).items() if end > starts[tp]}
        for tp in chosen:
            consumer.seek(*tp, starts[tp])
        for batch in batches_until(consumer, left, state.timeout_s):
            chains[batch.topic, batch.partition].check(batch.values())
    count = sum(chain.count for chain in chains.values())
    faults = [
        f"partition {tp[1]}, record {chain.broken.position}: {chain.broken.fault}"
        for tp, chain in chains.items()
        if chain.broken is not None
    ]
    if expected is not None and count != expected and not faults:
        faults.append(f"{expected} records were acknowledged, {count} are there")
    if state.json:
        emit({"records": count, "faults": faults})
    elif not faults:
        click.echo(f"{count} records in {len(chains)} partitions: every chain holds")
    if faults:
        raise StreamlogError("; ".join(faults))


def _report(
    state: State, records: int, size_bytes: int, elapsed_s: float, latencies_s: list[float]
) -> None:
    values: dict[str, float | int] = {
        "records": records,
        "bytes": size_bytes,
        "seconds": round(elapsed_s, 3),
        "mb_per_s": round(size_bytes / 1e6 / elapsed_s, 1),
        "records_per_s": round(records / elapsed_s),
    }
    if latencies_s:
        ordered = sorted(latencies_s)
        for percent in (50, 99):
            index = min(len(ordered) - 1, len(ordered) * percent // 100)
            values[f"ack_p{percent}_ms"] = round(ordered[index] * 1000, 2)
    if state.json:
        emit(values)
    else:
        field_list(values)
    sys.stdout.flush()
