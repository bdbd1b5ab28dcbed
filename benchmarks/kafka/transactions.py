"""Transactions: what they cost, how long commits take, and many that stay open."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.kafka import librdkafka, transacting, transaction_costs
from benchmarks.kafka.bench import Bench
from benchmarks.kafka.librdkafka import Figures
from benchmarks.kafka.servers import BARE, PARTITIONS, Server, node_server
from benchmarks.kafka.wire import TIMEOUT_MS, KafkaConnection, encode_frame
from benchmarks.report import Row
from streamlog.codec.batch import BatchProducer
from streamlog.codec.records import BatchBuilder
from streamlog.kafka.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from streamlog.kafka.messages.end_txn_request import EndTxnRequest
from streamlog.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from streamlog.kafka.messages.init_producer_id_request import InitProducerIdRequest
from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError

COMMITS = 300
OPEN = 10_000
OPEN_TIMEOUT_MS = 900_000
OPEN_MEASURED_S = 10
OPEN_QUICK_S = 1
AT_ONCE = 64
"""Requests of one connection under way."""
TRANSACTIONAL_ID = 1
BUSY = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.CONCURRENT_TRANSACTIONS,
)
BUSY_TIMEOUT_S = 60.0


def run(bench: Bench) -> None:
    bench.attempt("transactions", "cost", lambda: transaction_costs.run(bench))
    if librdkafka.is_there():
        servers = [one for name, one in bench.servers.items() if name != BARE]
        bench.attempt("transactions", "commits", lambda: _commits(bench, servers))
    else:
        bench.report.note("commits of librdkafka are left out: it is not installed")
    bench.attempt("transactions", "open", lambda: _many_open(bench))


# ---- commits


def _commits(bench: Bench, servers: list[Server]) -> None:
    """One record in each partition, delivered; then the commit is timed, until it is answered."""
    transactions = max(10, int(COMMITS * bench.scale))
    taken = {one.name: list[Figures]() for one in servers}
    for _ in bench.rounds():
        for server in servers:
            topic = server.new_topic("txn-commit")
            server.wait_until_idle()
            found = transacting.commit(server.address, topic, PARTITIONS, transactions)
            taken[server.name].append(found)
    for name, figures in taken.items():
        p50 = median(one["p50_ms"] for one in figures)
        row = Row("transactions", f"{name}, commit", p50, "ms p50", less_is_better=True)
        p99 = [one["p99_ms"] for one in figures]
        row.facts = {"p99_ms": median(p99), "p99_ms_least": min(p99), "p99_ms_most": max(p99)}
        bench.report.add(row)


# ---- many that stay open


def _many_open(bench: Bench) -> None:
    """Memory and CPU of a node with transactions that nobody ends, each with one record.

    A new node: one that has served much has free memory for thousands of them.
    """
    count = bench.number(OPEN)
    with (
        tempfile.TemporaryDirectory(prefix="open-", dir=bench.folder) as folder,
        node_server(Path(folder) / "node") as node,
        KafkaConnection(node.address) as connection,
    ):
        topic = node.new_topic("txn-open")
        # The coordinator's logs are opened with the first transaction.
        _Transactions(connection, topic, "warm", 100).open()
        node.wait_until_idle()
        before, cpu, began = node.rss_bytes(), node.cpu_s(), time.perf_counter()
        opened = _Transactions(connection, topic, "open", count)
        opened.open()
        seconds, each_us = time.perf_counter() - began, (node.cpu_s() - cpu) / count * 1e6
        each_kb = (node.rss_bytes() - before) / count / 1e3
        cpu, began = node.cpu_s(), time.perf_counter()
        time.sleep(bench.number(OPEN_MEASURED_S, OPEN_QUICK_S))
        idle = (node.cpu_s() - cpu) / (time.perf_counter() - began) * 100
        cpu = node.cpu_s()
        opened.end()
        node.wait_until_idle()
        ended_us = (node.cpu_s() - cpu) / count * 1e6
        rss_mb = node.rss_bytes() / 1e6
    row = Row("transactions", f"node, {count} open", each_kb, "KB each", less_is_better=True)
    row.facts = {
        "cpu_percent_while_open": idle,
        "cpu_us_to_open": each_us,
        "cpu_us_to_end": ended_us,
        "opened_s": count / seconds,
        "rss_mb": rss_mb,
    }
    bench.report.add(row)


class _Transactions:
    """Transactional ids of one connection, each with one record in one partition."""

    def __init__(self, connection: KafkaConnection, topic: str, name: str, count: int) -> None:
        self._connection = connection
        self._topic = topic
        self._ids = [f"{topic}-{name}-{number}" for number in range(count)]
        self._producers: dict[str, BatchProducer] = {}

    def open(self) -> None:
        self._find_coordinator()
        self._init_all()
        for _, answer in self._asked(ApiKey.ADD_PARTITIONS_TO_TXN, self._add):
            (topic,) = answer.results_by_topic_v3_and_below
            _check(topic.results_by_partition[0].partition_error_code)
        for _, answer in self._asked(ApiKey.PRODUCE, self._produce):
            _check(answer.responses[0].partition_responses[0].error_code)

    def _init_all(self) -> None:
        """Partitions of the coordinator are loaded one by one: ids of some have to ask again."""
        give_up_at = time.monotonic() + BUSY_TIMEOUT_S
        left = self._ids
        while left:
            busy: list[str] = []
            for name, answer in self._asked(ApiKey.INIT_PRODUCER_ID, self._init, left):
                if KafkaError(answer.error_code) in BUSY and time.monotonic() < give_up_at:
                    busy.append(name)
                    continue
                _check(answer.error_code)
                pair = answer.producer_id, answer.producer_epoch
                self._producers[name] = BatchProducer(*pair, 0)
            left = busy
            if left:
                time.sleep(0.05)

    def end(self) -> None:
        for _, answer in self._asked(ApiKey.END_TXN, self._end):
            _check(answer.error_code)

    def _find_coordinator(self) -> None:
        asked = FindCoordinatorRequest(key=self._ids[0], key_type=TRANSACTIONAL_ID)
        give_up_at = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            error = KafkaError(self._connection.ask(ApiKey.FIND_COORDINATOR, asked).error_code)
            if error is KafkaError.NONE:
                return
            if error not in BUSY or time.monotonic() > give_up_at:
                raise RuntimeError(f"no coordinator: {error.name}")
            time.sleep(0.05)

    def _asked(
        self, api: ApiKey, request: Any, ids: Sequence[str] | None = None
    ) -> Iterator[tuple[str, Any]]:
        """The answers for the ids, all by default; as many requests as may be under way at a
        time."""
        asked = self._ids if ids is None else ids
        for first in range(0, len(asked), AT_ONCE):
            names = asked[first : first + AT_ONCE]
            self._connection.send(b"".join(encode_frame(api, request(one), 1) for one in names))
            for name in names:
                yield name, self._connection.response(api)

    def _partition(self, name: str) -> int:
        return hash(name) % PARTITIONS

    def _init(self, name: str) -> InitProducerIdRequest:
        return InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=OPEN_TIMEOUT_MS)

    def _add(self, name: str) -> AddPartitionsToTxnRequest:
        producer = self._producers[name]
        topic = AddPartitionsToTxnTopic(name=self._topic, partitions=[self._partition(name)])
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[topic],
        )

    def _produce(self, name: str) -> ProduceRequest:
        builder = BatchBuilder(1 << 20)
        builder.extend([b"open"], timestamp_ms=int(time.time() * 1000))
        batch = builder.build(self._producers[name], is_transactional=True)
        part = PartitionProduceData(index=self._partition(name), records=memoryview(batch))
        return ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name=self._topic, partition_data=[part])],
        )

    def _end(self, name: str) -> EndTxnRequest:
        producer = self._producers[name]
        return EndTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=False,
        )


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"refused: {KafkaError(code).name}")
