"""A lock with a lease, held by at most one, and a token that keeps late holders out.

streamlog dev &
python examples/lock_with_lease.py 127.0.0.1:9644           # four threads in this process
python examples/lock_with_lease.py 127.0.0.1:9644 ann 20    # one of several processes

Partition 0 of the topic is the lock: whoever appends "taken" at the end that it has read has it.
Partition 1 is what the lock guards. A lease can end while its holder still works, because it was
paused, or because its messages were slow. So the lock has a number, the offset at which it was
taken, and the guarded partition has the number as its token: it refuses an older holder.
"""

from __future__ import annotations

import json
import sys
import threading

from streamlog.client import Admin, Consumer, Partitions
from streamlog.errors import (
    OffsetConflict,
    OutcomeUnknown,
    TokenMismatch,
    TopicAlreadyExists,
    Unavailable,
)
from streamlog.runtime import SystemClock

TOPIC = "example-lock"
LOCK, GUARDED = (TOPIC, 0), (TOPIC, 1)
CLOCK = SystemClock()
LEASE_S = 0.5
PAUSE_S = 0.02


class LeaseOver(Exception):
    """The lock has another holder by now."""


class Lock:
    def __init__(self, server: str, name: str) -> None:
        self.name = name
        self.logs = Partitions(server)
        self.consumer = Consumer(server)
        self.consumer.assign([LOCK, GUARDED])
        self.end = 0
        self.free_at = 0.0
        """When the lease that was seen last is over, on this process's clock; 0: it is free."""
        self.number = -1
        self.value = 0
        """The last value in the guarded partition."""

    def close(self) -> None:
        self.logs.close()
        self.consumer.close()

    def read_on(self) -> None:
        ends = self.consumer.end_offsets([LOCK, GUARDED])
        while any(self.consumer.position(*place) < end for place, end in ends.items()):
            self.listen(1.0)

    def listen(self, timeout_s: float) -> None:
        for record in self.consumer.poll(timeout_s):
            assert record.value is not None
            event = json.loads(record.value)
            if record.partition == 1:
                self.value = event["value"]
                continue
            # Read later than it was written: so the lease is never too short for its holder.
            self.free_at = CLOCK.monotonic() + LEASE_S if event["what"] == "taken" else 0.0
            self.end = record.offset + 1

    def _append(self, what: str, expected: int) -> int:
        event = json.dumps({"what": what, "by": self.name}).encode()
        return self.logs.append(*LOCK, event, expected_next_offset=expected).base_offset

    def acquire(self) -> None:
        """Returns as the holder, who has read all that earlier holders have written."""
        while True:
            self.read_on()
            if CLOCK.monotonic() < self.free_at:
                self.listen(PAUSE_S)
                continue
            try:
                self.number = self._append("taken", self.end)
            except (OffsetConflict, OutcomeUnknown):
                # Where it is unknown and was stored, nobody uses it, and its lease ends.
                continue
            if self._shut_out_others():
                self.read_on()
                return

    def _shut_out_others(self) -> bool:
        """False: a later holder has come already, because this one was slow."""
        token = b"%d" % self.number
        while (before := self.logs.describe(*GUARDED).fencing_token) != token:
            if int(before or b"-1") > self.number:
                return False
            try:
                self.logs.set_fencing_token(*GUARDED, token, expected_token=before)
            except (TokenMismatch, OutcomeUnknown):
                continue
        return True

    def write(self, value: int) -> int:
        """Errors: LeaseOver; OutcomeUnknown: whoever has the lock next reads it, or not."""
        event = json.dumps({"value": value, "by": self.name, "number": self.number}).encode()
        try:
            done = self.logs.append(*GUARDED, event, fencing_token=b"%d" % self.number)
        except TokenMismatch as mismatch:
            raise LeaseOver(f"{self.name}: {mismatch.actual} has it, not {self.number}") from None
        self.value = value
        return done.base_offset

    def release(self) -> None:
        """Harmless when the lease is over."""
        try:
            self._append("free", self.number + 1)
        except (OffsetConflict, OutcomeUnknown):
            # Another holder has it, or the lease ends by itself.
            return


def add_up(lock: Lock, rounds: int) -> None:
    """Adds 1 to the guarded value, twice in each round."""
    done = 0
    while done < rounds:
        try:
            lock.acquire()
            for _ in range(2):
                offset = lock.write(lock.value + 1)
                print(f"{lock.name}: {lock.value} at {offset}", flush=True)
            lock.release()
            done += 1
        except (LeaseOver, OutcomeUnknown, Unavailable) as error:
            print(f"{lock.name}: {error}", flush=True)


def holder(server: str, name: str, rounds: int) -> None:
    lock = Lock(server, name)
    try:
        add_up(lock, rounds)
    finally:
        lock.close()


def create_topic(server: str) -> None:
    with Admin(server) as admin:
        try:
            admin.create_topic(TOPIC, partitions=2)
        except TopicAlreadyExists:
            print(f"{TOPIC} is there already")


def main(server: str) -> None:
    create_topic(server)
    names = [f"thread {number}" for number in range(4)]
    threads = [threading.Thread(target=holder, args=(server, name, 3)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    # A holder that sleeps longer than its lease finds the door closed.
    late, other = Lock(server, "late"), Lock(server, "other")
    late.acquire()
    other.acquire()
    try:
        late.write(late.value + 1)
    except LeaseOver as over:
        print(over)
    for one in (late, other):
        one.close()


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9644"
    if len(sys.argv) > 2:
        create_topic(given)
        holder(given, sys.argv[2], int(sys.argv[3]))
    else:
        main(given)
