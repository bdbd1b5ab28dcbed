"""What a Spark reader gives and what a consumer gives, over all that a topic may go through."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamlog.client import Admin, Producer
from streamlog.objectstore.keys import data_key
from streamlog.spark.errors import DataLost
from streamlog.spark.plan.session import Planned
from tests.spark.reading import carry_out, consumed, plan, rows
from tests.support.node import NodeProcess

pytestmark = pytest.mark.xdist_group("spark")

DAY_MS = 86_400_000
PARTITIONS = 2
KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
QUICK = {
    "engine.compaction.compaction_interval_ms": 50,
    "engine.compaction.small_objects_min": 2,
    "engine.collector.deletion_delay_ms": 1,
    "engine.collector.collect_interval_ms": 50,
    "engine.metadata.checkpoint_interval_ms": 50,
    "broker.log.retention.check.interval.ms": 20,
}


@dataclass(frozen=True)
class Sent:
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that merges small objects, deletes what died and looks for what is to go, at once."""
    arguments = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
    folder = tmp_path_factory.mktemp("busy") / "data"
    with NodeProcess(folder, wal="object", arguments=tuple(arguments)) as running:
        yield running


@pytest.fixture(scope="module")
def new_name() -> Callable[[], str]:
    names = (f"topic{number}" for number in range(1_000_000))
    return lambda: next(names)


data = st.none() | st.binary(max_size=60)
sent = st.builds(
    Sent,
    st.integers(0, PARTITIONS - 1),
    data,
    data,
    st.lists(st.tuples(st.text(max_size=4), data), max_size=2).map(tuple),
)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"),
            st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
            st.sampled_from([0, 5, 40]),
            st.lists(sent, min_size=1, max_size=40),
        ),
        st.tuples(st.just("trim"), st.integers(0, PARTITIONS - 1), st.integers(0, 100)),
        # What is older than so many days goes, up to the first that is not; or all of it.
        st.tuples(st.just("expire by time"), st.sampled_from([2, 20])),
        st.tuples(st.just("expire by size")),
    ),
    min_size=2,
    max_size=7,
)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps, st.sampled_from(["1", "3000", "1000000"]))
def test_the_same_rows_whatever_was_trimmed_expired_and_merged(
    busy: NodeProcess, new_name: Callable[[], str], steps: list[Any], max_bytes: str
) -> None:
    topic = new_name()
    with Admin(busy.server) as admin:
        admin.create_topic(topic, PARTITIONS, {"segment.ms": str(DAY_MS), **KEEP_ALL})
        for name, *given_step in steps:
            _STEPS[name](busy.server, admin, topic, *given_step)
    _compare(busy.server, topic, max_bytes)


def test_retention_and_merges_do_take_place(busy: NodeProcess, new_name: Callable[[], str]) -> None:
    """What the property rests on, and a plan from before is carried out afterwards."""
    topic = new_name()
    with Admin(busy.server) as admin:
        # A segment for each batch of some 800 bytes.
        admin.create_topic(topic, PARTITIONS, {"internal.segment.bytes": "1200", **KEEP_ALL})
        records = [Sent(n % 2, b"k", b"value %d" % n * 20) for n in range(10)]
        for _ in range(6):
            _send(busy.server, admin, topic, "none", 0, records)
        planned = plan(server=busy.server, subscribe=topic, readMode="store")
        expected = consumed(busy.server, topic, PARTITIONS)
        assert len(expected) == 60
        files = _files(planned)
        other = new_name()
        admin.create_topic(other, PARTITIONS, KEEP_ALL)

        def are_merged() -> bool:
            # A merge takes several objects of like size: the last one waits for others to come.
            _send(busy.server, admin, other, "none", 0, records)
            return not files & _now(busy.server, topic)

        _until(are_merged)
        admin.alter_configs(topic=topic, configs={"retention.bytes": "2500"})
        _until(lambda: all(0 < start < end for start, end in _bounds(admin, topic)))
        admin.alter_configs(topic=topic, configs=KEEP_ALL)
        assert rows(carry_out(planned)) == expected
    _compare(busy.server, topic, "3000")


def _files(planned: Planned) -> set[str]:
    return {data_key(object_id) for task in planned.plan.tasks for object_id in task.objects.ids}


def _now(server: str, topic: str) -> set[str]:
    planned = plan(server=server, subscribe=topic, readMode="store", pinTtlMs="1000")
    return _files(planned)


def _compare(server: str, topic: str, max_bytes: str) -> None:
    """Anew where retention was still under way."""
    for _ in range(100):
        with Admin(server) as admin:
            before = _bounds(admin, topic)
            tables = {}
            expected = consumed(server, topic, PARTITIONS)
            with suppress(DataLost):
                for mode in ("auto", "store", "service"):
                    options = {"server": server, "subscribe": topic, "readMode": mode}
                    options["maxBytesPerPartition"] = max_bytes
                    tables[mode] = rows(carry_out(plan(**options)))
            if before != _bounds(admin, topic):
                continue
        assert tables == dict.fromkeys(("auto", "store", "service"), expected)
        return
    raise AssertionError("retention did not come to rest")


def _bounds(admin: Admin, topic: str) -> list[tuple[int, int]]:
    """Log start offset and end of each partition."""
    described = admin.describe_topic(topic).partitions
    return [(part.log_start_offset, part.high_watermark) for part in described]


def _until(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 150
    while not holds():
        assert time.monotonic() < ends_at


# steps


def _send(
    server: str, _: Admin, topic: str, codec: str, age_days: int, records: list[Sent]
) -> None:
    stamp_ms = int(time.time() * 1000) - age_days * DAY_MS
    with Producer(server, compression=codec) as producer:
        deliveries = [
            producer.send(
                topic,
                record.value,
                key=record.key,
                headers=record.headers,
                timestamp_ms=stamp_ms,
                partition=record.partition,
            )
            for record in records
        ]
        for delivery in deliveries:
            delivery.result()


def _trim(_: str, admin: Admin, topic: str, partition: int, percent: int) -> None:
    start, end = _bounds(admin, topic)[partition]
    admin.delete_records(topic, partition, start + (end - start) * percent // 100)


def _expire_by_time(server: str, admin: Admin, topic: str, days: int) -> None:
    """Where a record is more than a day younger than the one before, a segment begins. One that is
    trimmed and not seen may keep its segment: no partition that was trimmed is waited for."""
    limit_ms = int(time.time() * 1000) - days * DAY_MS
    young = {n: end for n, (start, end) in enumerate(_bounds(admin, topic)) if start == 0}
    for _, partition, offset, stamp, *_rest in reversed(consumed(server, topic, PARTITIONS)):
        if stamp > limit_ms and partition in young:
            young[partition] = offset
    admin.alter_configs(topic=topic, configs={"retention.ms": str(days * DAY_MS)})
    _until(lambda: all(_bounds(admin, topic)[n][0] >= at for n, at in young.items()))
    admin.alter_configs(topic=topic, configs=KEEP_ALL)


def _expire_by_size(_: str, admin: Admin, topic: str) -> None:
    admin.alter_configs(topic=topic, configs={"retention.bytes": "0"})
    _until(lambda: all(start == end for start, end in _bounds(admin, topic)))
    admin.alter_configs(topic=topic, configs=KEEP_ALL)


_STEPS: dict[str, Callable[..., None]] = {
    "send": _send,
    "trim": _trim,
    "expire by time": _expire_by_time,
    "expire by size": _expire_by_size,
}
