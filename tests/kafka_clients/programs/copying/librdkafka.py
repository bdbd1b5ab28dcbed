"""librdkafka, through confluent-kafka."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.kafka_clients.programs.copying import FATAL, RECORDS_MAX
from tests.kafka_clients.programs.numbered.protocol import (
    BACKOFF_MS,
    BACKOFF_MS_MAX,
    LINGER_MS,
    await_start,
    tell,
)

WAIT_S = 120.0
"""For the broker, and for the others' open transactions."""
PAUSE_S = 0.05
END = "_PARTITION_EOF"
"""What librdkafka says where nothing follows."""
ABORTED = 0.3
"""The share of transactions that end so."""


def say(*words: object) -> None:
    """At once: the program may be killed with the next call."""
    tell(*words)
    sys.stdout.flush()


class Copier:
    def __init__(self) -> None:
        _, bootstrap, self._source, partition, self._target, partitions, self._id, start, seed = (
            sys.argv
        )
        self._partition, self._partitions = int(partition), int(partitions)
        self._start = start
        self._rng = random.Random(f"{seed} {self._id} {start}")
        self._count = 0
        self._common = {
            "bootstrap.servers": bootstrap,
            "reconnect.backoff.ms": BACKOFF_MS,
            "reconnect.backoff.max.ms": BACKOFF_MS_MAX,
            "retry.backoff.ms": BACKOFF_MS,
            "retry.backoff.max.ms": BACKOFF_MS_MAX,
            "log_level": 0,
        }
        self._producer = Producer(
            {**self._common, "transactional.id": self._id, "linger.ms": LINGER_MS}
        )
        self._consumer = self._new_consumer("read_committed")

    def _new_consumer(self, isolation: str) -> Consumer:
        return Consumer(
            {
                **self._common,
                "group.id": "none: it is assigned its partitions",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
            }
        )

    def run(self) -> None:
        stopping = await_start()
        self._repeat(lambda: self._producer.init_transactions(WAIT_S))
        place = self._place()
        say("place", place)
        self._consumer.assign([TopicPartition(self._source, self._partition, place)])
        while not stopping.is_set():
            taken = [one for one in self._consumer.consume(RECORDS_MAX, PAUSE_S) if is_record(one)]
            if taken and not self._copy(taken):
                self._seek(taken[0].offset())
            threading.Event().wait(PAUSE_S * self._rng.random())

    def _seek(self, offset: int) -> None:
        """`seek` asks the broker, which may be away."""
        self._consumer.assign([TopicPartition(self._source, self._partition, offset)])

    # ---- one transaction

    def _copy(self, taken: list[Any]) -> bool:
        """Whether it was committed."""
        self._count += 1
        name = f"{self._id}/{self._start}/{self._count}"
        say("began", name)
        try:
            self._repeat(self._producer.begin_transaction)
            self._write(name, taken)
            if self._rng.random() >= ABORTED:
                say("committing", name)
                self._repeat(lambda: self._producer.commit_transaction(WAIT_S))
                say("committed", name)
                return True
        except MustAbort as reason:
            say("again", reason)
        else:
            say("aborting", name)
        self._repeat(lambda: self._producer.abort_transaction(WAIT_S))
        say("aborted", name)
        return False

    def _write(self, name: str, taken: list[Any]) -> None:
        written = set()
        for message in taken:
            place = f"{message.partition()}:{message.offset()}"
            headers = [("in", place), ("by", self._id), ("txn", name)]
            to = message.offset() % self._partitions
            written.add(to)
            self._send(message.value(), to, headers)
            if self._rng.random() < 0.1:
                self._producer.poll(0)
        marked = sorted(written) if self._rng.random() < 0.5 else range(self._partitions)
        for to in marked:
            self._send(f"{name} {len(taken)} {len(marked)}".encode(), to, [("txn", name)])

    def _send(self, value: bytes, partition: int, headers: list[tuple[str, Any]]) -> None:
        def send() -> None:
            self._producer.produce(self._target, value, partition=partition, headers=headers)

        self._repeat(send)

    def _repeat(self, call: Callable[[], object], *, changes_nothing: bool = False) -> None:
        """Calls until it succeeds. Errors: MustAbort; SystemExit, where the client is of no use.

        `changes_nothing`: no error of the call is the client's last word.
        """
        give_up_at = time.monotonic() + WAIT_S
        while True:
            try:
                call()
                return
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.txn_requires_abort():
                    raise MustAbort(str(reason)) from error
                is_final = not reason.retriable() and not changes_nothing
                if is_final or time.monotonic() > give_up_at:
                    say("again", "fatal", reason)
                    sys.exit(FATAL)
                say("again", reason)

    # ---- where it had come to

    def _place(self) -> int:
        """Behind the last input whose copy is committed."""
        # Its own last transaction has ended, but one of another copier may be open before that.
        ends = self._ends("read_uncommitted")
        give_up_at = time.monotonic() + WAIT_S
        while any(now < end for now, end in zip(self._ends("read_committed"), ends, strict=True)):
            if time.monotonic() > give_up_at:
                say("again", "fatal: the output's stable end stays before", ends)
                sys.exit(FATAL)
            threading.Event().wait(PAUSE_S)
        reader = self._new_consumer("read_committed")
        reader.assign([TopicPartition(self._target, number, 0) for number in range(len(ends))])
        waiting = {number for number, end in enumerate(ends) if end > 0}
        place = 0
        while waiting:
            for message in reader.consume(1000, 1.0):
                error = message.error()
                if error is None:
                    place = max(place, self._behind(message))
                elif error.name() == END:
                    if message.offset() >= ends[message.partition()]:
                        waiting.discard(message.partition())
                elif not error.retriable() and time.monotonic() > give_up_at:
                    raise KafkaException(error)
        reader.close()
        return place

    def _behind(self, message: Any) -> int:
        headers = dict(message.headers() or ())
        if headers.get("by") != self._id.encode():
            return 0
        partition, _, offset = headers["in"].decode().partition(":")
        assert int(partition) == self._partition
        return int(offset) + 1

    def _ends(self, isolation: str) -> list[int]:
        asking = self._new_consumer(isolation)
        ends: list[int] = []

        def ask() -> None:
            ends[:] = [
                asking.get_watermark_offsets(TopicPartition(self._target, number), WAIT_S)[1]
                for number in range(self._partitions)
            ]

        self._repeat(ask, changes_nothing=True)
        asking.close()
        return ends


class MustAbort(Exception):
    """The transaction cannot be committed any more."""


def is_record(message: Any) -> bool:
    """Not the end of the partition, and not an error, after which the client goes on."""
    return message.error() is None


Copier().run()
