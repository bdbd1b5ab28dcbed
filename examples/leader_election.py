"""Elects a leader by conditional appends, and shuts out the one before by a fencing token.

streamlog dev &
python examples/leader_election.py 127.0.0.1:9644            # three candidates in this process
python examples/leader_election.py 127.0.0.1:9644 ann 100    # one of several processes

The leader counts: each record holds the number behind the one before. Two leaders at a time would
count twice. Nothing of this depends on clocks: a wrong SILENCE_S only elects too often.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from streamlog.client import Admin, Consumer, Partitions
from streamlog.errors import (
    OffsetConflict,
    OutcomeUnknown,
    TokenMismatch,
    TopicAlreadyExists,
    Unavailable,
)
from streamlog.runtime import SystemClock

TOPIC = "example-election"
PLACE = (TOPIC, 0)
CLOCK = SystemClock()
SILENCE_S = 0.5
"""A leader that is silent for so long is taken for dead."""


class Candidate:
    def __init__(self, server: str, name: str) -> None:
        self.name = name
        self.logs = Partitions(server)
        self.consumer = Consumer(server)
        self.consumer.assign([PLACE])
        self.end = 0
        self.epoch = 0
        self.count = 0
        self.heard_at = CLOCK.monotonic()

    def close(self) -> None:
        self.logs.close()
        self.consumer.close()

    def read_on(self) -> None:
        """Reads all that there is by now."""
        end = self.consumer.end_offsets([PLACE])[PLACE]
        while self.consumer.position(*PLACE) < end:
            self.listen(1.0)

    def listen(self, timeout_s: float) -> None:
        for record in self.consumer.poll(timeout_s):
            assert record.value is not None
            self.apply(record.offset, json.loads(record.value))

    def apply(self, offset: int, event: dict[str, Any]) -> None:
        self.end = offset + 1
        self.heard_at = CLOCK.monotonic()
        self.epoch = max(self.epoch, event["epoch"])
        self.count = max(self.count, event["count"])

    def append(self, what: str, count: int, **condition: Any) -> int:
        event = {"what": what, "by": self.name, "epoch": self.epoch, "count": count}
        return self.logs.append(*PLACE, json.dumps(event).encode(), **condition).base_offset

    def stand(self) -> bytes | None:
        """The token of the new leader, or None where another candidate was faster."""
        self.epoch += 1
        try:
            # Of all who have read up to here, one is elected; so an epoch has one leader at most.
            self.append("I lead", self.count, expected_next_offset=self.end)
        except (OffsetConflict, OutcomeUnknown):
            # Where it is unknown and was stored, the epoch has no leader: the next one comes.
            return None
        token = b"%d" % self.epoch
        while (before := self.logs.describe(*PLACE).fencing_token) != token:
            if int(before or b"0") > self.epoch:
                return None
            try:
                self.logs.set_fencing_token(*PLACE, token, expected_token=before)
            except (TokenMismatch, OutcomeUnknown):
                continue
        # What the old leader stored before the token is there, and nothing of it comes any more.
        self.read_on()
        return token

    def lead(self, token: bytes, until: int) -> None:
        """Counts until another leader has taken over."""
        while self.count < until:
            try:
                offset = self.append("count", self.count + 1, fencing_token=token)
            except TokenMismatch as mismatch:
                print(f"{self.name}: {mismatch.actual} leads now, not {token.decode()}", flush=True)
                return
            except OutcomeUnknown:
                # Perhaps it is stored: whoever leads next, perhaps this one, reads first.
                return
            self.count += 1
            print(f"{self.name}: {self.count} at {offset}", flush=True)

    def run(self, until: int) -> None:
        while self.count < until:
            try:
                self.read_on()
                if self.end and CLOCK.monotonic() - self.heard_at < SILENCE_S:
                    self.listen(SILENCE_S / 10)
                elif (token := self.stand()) is not None:
                    print(f"{self.name}: leads in epoch {self.epoch}", flush=True)
                    self.lead(token, until)
            except Unavailable as error:
                print(f"{self.name}: {error}", flush=True)


def candidate(server: str, name: str, until: int) -> None:
    standing = Candidate(server, name)
    try:
        standing.run(until)
    finally:
        standing.close()


def create_topic(server: str) -> None:
    with Admin(server) as admin:
        try:
            admin.create_topic(TOPIC, partitions=1)
        except TopicAlreadyExists:
            print(f"{TOPIC} is there already")


def main(server: str) -> None:
    create_topic(server)
    threads = [
        threading.Thread(target=candidate, args=(server, name, 20))
        for name in ("ann", "bob", "eve")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    # A leader that was asleep for a while does not know of the next one; the log does.
    asleep, awake = Candidate(server, "asleep"), Candidate(server, "awake")
    asleep.read_on()
    token = asleep.stand()
    awake.read_on()
    if token is None or awake.stand() is None:
        raise SystemExit("somebody else stands for election as well: run it alone")
    asleep.lead(token, asleep.count + 1)
    for one in (asleep, awake):
        one.close()


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9644"
    if len(sys.argv) > 2:
        create_topic(given)
        candidate(given, sys.argv[2], int(sys.argv[3]))
    else:
        main(given)
