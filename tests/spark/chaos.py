"""Chaos for the sink: tasks, drivers, calls and the node fail, seeded; then rows are counted.

Commits are those of a node, or of transactions (`--transactions`).

A run is one streaming query, as Spark would drive it: its batches are replayed until one attempt is
through, each time cut into other tasks. `python -m tests.spark.chaos --runs N --seed S` prints
faults by kind, rows missing and rows twice; the exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from streamlog.client.channel import Call
from streamlog.client.producer_identity import ProducerIdentity
from streamlog.client.staging import StagedObject
from streamlog.codec.batch import Compression
from streamlog.errors import (
    ConcurrentTransactions,
    Fenced,
    InvalidTxnState,
    OutcomeUnknown,
    StagedNotFound,
    StreamlogError,
    Unavailable,
)
from streamlog.runtime.clock import SystemClock
from streamlog.spark.sink.epochs import abort_epoch, commit_epoch
from streamlog.spark.sink.sink import named_once
from streamlog.spark.sink.stage import StageSizes, StagingTask
from streamlog.spark.sink.write_options import WriteOptions
from tests.spark.staged_node import StagedNode, broken_off, quick_retries
from tests.support.replacing import replace_method

TOPICS = {"t": 3, "u": 2}
SCHEMA = pa.schema([("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary())])
RUNS_OF_A_NODE = 25
"""One after the other, to the same topics; a node that is started again reads all of them."""
BATCHES = 3
ROWS_MAX = 24
TASKS_MAX = 3
TASK_FAILURES_MAX = 4
GIVEN_UP_MS = 5
"""What a driver waits for a commit that is never answered."""
KILL_TURNS_MAX = 40


class TaskFailed(Exception):
    """An executor is gone, or the rows of a task cannot be read."""


@dataclass
class Report:
    runs: int = 0
    rows: int = 0
    missing: int = 0
    twice: int = 0
    strange: int = 0
    """Rows that no writer wrote."""
    out_of_order: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        return self.missing == self.twice == self.strange == self.out_of_order == 0

    def to_json(self) -> str:
        return json.dumps({**vars(self), "faults": dict(sorted(self.faults.items()))})


WriterIds = Callable[[int, int], str]
"""(run, attempt of a batch) → the writer id; a right one does not look at the attempt."""


def one_per_query(run: int, _: int) -> str:
    return f"query-{run}"


def chaos(
    runs: int,
    seed: int,
    *,
    faults: float = 1.0,
    writer_ids: WriterIds = one_per_query,
    transactions: bool = False,
) -> Report:
    """`faults` scales how often things fail."""
    report = Report()
    for first in range(0, runs, RUNS_OF_A_NODE):
        with quick_retries(), StagedNode() as node:
            for topic, partitions in TOPICS.items():
                node.create_topic(topic, partitions)
            written: list[bytes] = []
            for run in range(first, min(runs, first + RUNS_OF_A_NODE)):
                chance = random.Random(f"{seed}/{run}")
                kind = _TransactionalQuery if transactions else _Query
                written += kind(node, run, chance, report, faults, writer_ids).run()
                report.runs += 1
            _count(node, written, report)
    return report


def _count(node: StagedNode, written: Sequence[bytes], report: Report) -> None:
    occurrences: Counter[bytes] = Counter()
    for topic in TOPICS:
        for rows in node.rows(topic).values():
            values = [row.value or b"" for row in rows]
            occurrences.update(values)
            # Rows of a query come by batches, and those of a batch in their order.
            of_query: dict[bytes, bytes] = {}
            for value in values:
                query = value[:8]
                report.out_of_order += value < of_query.get(query, b"")
                of_query[query] = value
    report.rows += len(written)
    report.missing += sum(occurrences[value] == 0 for value in written)
    report.twice += sum(count > 1 for count in occurrences.values())
    report.strange += len(set(occurrences) - set(written))


class _Query:
    decides = "Commit"
    """The call that makes a batch visible."""
    producer: ProducerIdentity | None = None

    def __init__(
        self,
        node: StagedNode,
        number: int,
        chance: random.Random,
        report: Report,
        faults: float,
        writer_ids: WriterIds,
    ) -> None:
        self._node = node
        self._number = number
        self._random = chance
        self._report = report
        self._faults = faults
        self._writer_ids = writer_ids
        self._attempt = 0
        self._late: list[Call] = []
        self._is_down = False

    def run(self) -> list[bytes]:
        """All its rows, which are there once when it returns."""
        written: list[bytes] = []
        for batch in range(BATCHES):
            count = self._random.randint(1, ROWS_MAX)
            rows = [b"%07d-%03d-%04d" % (self._number, batch, n) for n in range(count)]
            while not self._replayed(batch, rows):
                self._attempt += 1
            self._attempt += 1
            written += rows
        self._deliver(everything=True)
        return written

    def _happens(self, kind: str, chance: float) -> bool:
        if self._random.random() >= chance * self._faults:
            return False
        self._report.faults[kind] += 1
        return True

    # the driver

    def _replayed(self, batch: int, rows: Sequence[bytes]) -> bool:
        """Whether Spark notes the batch as done."""
        messages = [self._task(part) for part in self._parts(rows)]
        objects = [staged for message in messages for staged in message or ()]
        if None in messages:
            self._abort(batch, objects)
            return False
        if self._happens("driver killed before the commit", 0.1):
            return False
        try:
            self._commit(batch, objects)
        except StagedNotFound:
            # An abort of this attempt's own, come late, or none at all: the batch is replayed.
            self._abort(batch, objects)
            return False
        except (OutcomeUnknown, Unavailable):
            self._abort(batch, objects)
            return False
        return not self._happens("driver killed after the commit", 0.1)

    def _commit(self, batch: int, objects: Sequence[StagedObject]) -> None:
        through: Callable[[StagedNode, Call], Any] = self._through
        timeout_ms = 60_000
        if self._happens("commit arrives, driver gives up", 0.1):
            through, timeout_ms = self._unanswered(arrives="now"), GIVEN_UP_MS
        elif self._happens("commit arrives late, driver gives up", 0.1):
            through, timeout_ms = self._unanswered(arrives="late"), GIVEN_UP_MS
        elif self._happens("commit never arrives", 0.1):
            through, timeout_ms = self._unanswered(arrives="never"), GIVEN_UP_MS
        with self._node.writer(
            self._writer_id, through, self.producer, timeout_ms=timeout_ms
        ) as writer:
            commit_epoch(writer, batch, objects)
            if self._happens("commit repeated by a second driver", 0.1):
                commit_epoch(writer, batch, objects)
        self._deliver()

    def _abort(self, batch: int, objects: Sequence[StagedObject]) -> None:
        if self._happens("driver killed before the abort", 0.2):
            return
        with self._node.writer(self._writer_id, self._through, self.producer) as writer:
            abort_epoch(writer, batch, objects)
        self._deliver()

    @property
    def _writer_id(self) -> str:
        return self._writer_ids(self._number, self._attempt)

    # tasks

    def _parts(self, rows: Sequence[bytes]) -> list[Sequence[bytes]]:
        """Cut at random, otherwise at each replay."""
        cuts = sorted(self._random.randint(0, len(rows)) for _ in range(TASKS_MAX - 1))
        return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]

    def _task(self, rows: Sequence[bytes]) -> list[StagedObject] | None:
        """What one of its attempts staged; None: it failed too often."""
        for _ in range(TASK_FAILURES_MAX):
            try:
                chosen = self._staged(rows)
            except (TaskFailed, StreamlogError):
                continue
            if self._happens("two attempts ended, one counts", 0.15):
                try:
                    other = self._staged(rows)
                except (TaskFailed, StreamlogError):
                    continue
                chosen = self._random.choice([chosen, other])
            return chosen
        return None

    def _staged(self, rows: Sequence[bytes]) -> list[StagedObject]:
        chance = self._random
        target = self._node.target(self._writer_id, self._through, self.producer)
        if self._happens("task killed, what it staged stays", 0.08):
            replace_method(target, "drop", lambda _: None)
            dies_after = chance.randrange(3)
        elif self._happens("task failed, what it staged is dropped", 0.08):
            dies_after = chance.randrange(3)
        else:
            dies_after = None
        options = WriteOptions(
            server="h:1", compression=chance.choice(list(Compression)), batch_bytes=512
        )
        task = StagingTask(
            target,
            options,
            f"{chance.getrandbits(64):x}",
            clock=SystemClock(),
            start=chance.random(),
            sizes=StageSizes(
                chunk_bytes=chance.choice([100, 10_000]),
                object_bytes=chance.choice([100, 10_000]),
                part_bytes=chance.choice([1, 1000]),
                staged_bytes_max=chance.choice([200, 10_000]),
            ),
        )
        return list(named_once(task.write(self._batches(rows, dies_after))))

    def _batches(self, rows: Sequence[bytes], dies_after: int | None) -> Iterator[pa.RecordBatch]:
        for number, at in enumerate(range(0, len(rows), 5)):
            if number == dies_after:
                raise TaskFailed
            part = rows[at : at + 5]
            yield pa.RecordBatch.from_pydict(
                {
                    "topic": ["tu"[row[-1] % 2] for row in part],
                    "key": [None if row[-1] % 3 else row[-2:] for row in part],
                    "value": list(part),
                },
                schema=SCHEMA,
            )
        if dies_after is not None:
            raise TaskFailed

    # calls

    def _through(self, node: StagedNode, call: Call) -> Any:
        name = call.rpc.rpartition("/")[2].lower()
        if self._happens(f"{name} refused", 0.05):
            raise Unavailable("the node is away")
        if self._happens(f"{name}: answer lost", 0.05):
            node.answer(call)
            raise broken_off(call)
        if self._happens(f"{name}: came twice", 0.05):
            node.answer(call)
        if self._happens(f"{name}: node killed meanwhile", 0.015):
            return node.answer(call, kill_after=self._random.randrange(KILL_TURNS_MAX))
        return node.answer(call)

    def _unanswered(self, *, arrives: str) -> Callable[[StagedNode, Call], Any]:
        def through(node: StagedNode, call: Call) -> Any:
            if not call.rpc.endswith(f"/{self.decides}"):
                return self._through(node, call)
            if arrives == "now":
                node.answer(call)
            elif arrives == "late" and call not in self._late:
                self._late.append(call)
            raise broken_off(call)

        return through

    def _deliver(self, *, everything: bool = False) -> None:
        """Some of the requests that were under way for long."""
        for call in list(self._late):
            if everything or self._random.random() < 0.5:
                self._late.remove(call)
                try:
                    self._node.answer(call)
                except StagedNotFound:
                    self._report.faults["late commit found its objects dropped"] += 1


class _TransactionalQuery(_Query):
    """Its drivers commit by transactions; each driver fences the one before."""

    decides = "EndTransaction"

    def _replayed(self, batch: int, rows: Sequence[bytes]) -> bool:
        """A driver lives until it fails; with the next one comes another producer."""
        try:
            if self.producer is None:
                self.producer = self._node.initialised(self._writer_id, self._through)
            if super()._replayed(batch, rows):
                return True
        except StreamlogError as error:
            self._report.faults[f"driver ended by {type(error).__name__}"] += 1
        self.producer = None
        return False

    def _deliver(self, *, everything: bool = False) -> None:
        for call in list(self._late):
            if everything or self._random.random() < 0.5:
                self._late.remove(call)
                try:
                    self._node.answer(call)
                except (Fenced, InvalidTxnState, ConcurrentTransactions):
                    self._report.faults["late end was refused"] += 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=float, default=1.0)
    parser.add_argument("--transactions", action="store_true")
    given = parser.parse_args(arguments)
    logging.disable(logging.ERROR)
    report = chaos(given.runs, given.seed, faults=given.faults, transactions=given.transactions)
    print(report.to_json())
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
