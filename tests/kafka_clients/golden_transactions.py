"""A real Kafka's log of transaction states, and what that Kafka said of them meanwhile.

`python -m tests.kafka_clients.golden_transactions` makes the files anew: it runs sequences of
transactions from seeds, and some of the newer protocol, against a real Kafka, asks for a
transaction after each call that changed it, and copies the segment of `__transaction_state`. A
moment says how far the log was and what DescribeTransactions answered. In the last one a
transaction is prepared and cannot be completed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kafka_clients.differential.transactions.calls import (
    Adding,
    AddPartitions,
    Call,
    EndTxn,
    InitProducerId,
    Pair,
    Place,
    WriteMarkers,
)
from tests.kafka_clients.differential.transactions.sequence import Sequence
from tests.kafka_clients.differential.transactions.side import TransactionalSide
from tests.kafka_clients.raw_client import request
from tests.support.kafka_server import NEWEST_FEATURES, KafkaServer

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "kafka_transactions"
SEGMENT = GOLDEN / "transaction_state.log"
MOMENTS = GOLDEN / "moments.json"
TOPIC = "__transaction_state"
SEEDS = range(1, 6)
CALLS = 40
BUMPING = 5
"""The version of EndTxn whose producer goes on with the next epoch."""
TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Moment:
    """`end`: the log's end when Kafka described the transaction in its own words."""

    end: int
    transactional_id: str
    described: dict[str, Any]


def moments() -> list[Moment]:
    return [Moment(**one) for one in json.loads(MOMENTS.read_text())]


class Recorder:
    def __init__(self, side: TransactionalSide) -> None:
        self._side = side
        self.moments: list[Moment] = []

    def run(self, seed: int) -> None:
        """One sequence; a moment for each id that a call is about."""
        sequence = Sequence(seed, int(time.time() * 1000))
        for made in sequence.topics_made():
            made.wait_until_seen(self._side, made.on(self._side))
        self._side.await_coordinator(sequence.coordinated)
        for call in sequence.calls(CALLS):
            sequence.learn(call, call.on(self._side))
            for name in _ids_of(call):
                self.describe(name)

    def run_newer_protocol(self) -> None:
        """Epochs that rise with each end of a transaction."""
        name, place = "golden-bumped", Place("txn-diff-1-0", 0)
        seen = InitProducerId(place.topic, 4, name, TIMEOUT_MS).on(self._side)
        for is_commit in (True, False, True):
            pair = Pair(seen["producer"], seen["epoch"])
            AddPartitions(place.topic, 3, (Adding(name, pair, (place,)),)).on(self._side)
            self.describe(name)
            seen = EndTxn(place.topic, BUMPING, name, pair, is_commit).on(self._side)
            assert seen["error"] == 0, seen
            self.describe(name)

    def leave_prepared(self) -> None:
        """A newer coordinator seems to have written to the partition: it refuses the marker."""
        name, place = "golden-prepared", Place("txn-diff-1-0", 1)
        seen = InitProducerId(place.topic, 4, name, TIMEOUT_MS).on(self._side)
        pair = Pair(seen["producer"], seen["epoch"])
        AddPartitions(place.topic, 3, (Adding(name, pair, (place,)),)).on(self._side)
        marked = WriteMarkers(place.topic, pair, False, 7, (place.partition,)).on(self._side)
        assert marked["markers"][0][1][0][2] == 0, marked
        api = "end_txn"
        asked = request(
            api,
            transactional_id=name,
            producer_id=self._side.id_of(pair.producer),
            producer_epoch=pair.epoch,
            committed=True,
        )
        assert self._side.call(api, 3, asked).error_code == 0
        self.describe(name)
        assert self.moments[-1].described["transaction_state"] == "PrepareCommit"

    def describe(self, transactional_id: str) -> None:
        api = "describe_transactions"
        asked = request(api, transactional_ids=[transactional_id])
        (found,) = self._side.call(api, 0, asked).transaction_states
        described = {name: getattr(found, name) for name in found.__slots__ if name != "topics"}
        topics = sorted((one.topic, sorted(one.partitions)) for one in found.topics)
        self.moments.append(Moment(self._end(), transactional_id, {**described, "topics": topics}))

    def _end(self) -> int:
        ((_, _, end),) = self._side.offsets(TOPIC, 1)
        return end


def _ids_of(call: Call) -> list[str]:
    if isinstance(call, AddPartitions):
        return [one.transactional_id for one in call.transactions]
    if isinstance(call, EndTxn):
        return [call.transactional_id]
    if isinstance(call, InitProducerId) and call.transactional_id:
        return [call.transactional_id]
    return []


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaServer(Path(folder), features=NEWEST_FEATURES) as kafka,
    ):
        side = TransactionalSide("kafka", kafka.server)
        recorder = Recorder(side)
        for seed in SEEDS:
            recorder.run(seed)
        recorder.run_newer_protocol()
        recorder.leave_prepared()
        side.close()
        kafka.stop()
        (segment,) = kafka.segments(TOPIC)
        shutil.copyfile(segment, SEGMENT)
    lines = ",\n".join(
        json.dumps({name: getattr(one, name) for name in Moment.__slots__})
        for one in recorder.moments
    )
    MOMENTS.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
