"""What the programs in Python share: numbers of records, output, end of the input, settings."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

BURST = 10
"""Records for each partition between two looks at the answers."""
BATCH_BYTES = 1000
LINGER_MS = 2
PAUSE_S = 0.01
UNANSWERED_MAX = 1000
FLUSH_S = 120.0
BACKOFF_MS = 20
BACKOFF_MS_MAX = 100


class Numbering:
    """What the program is to write where, what it has sent, and how much of that is answered."""

    def __init__(self) -> None:
        _, self.bootstrap, self.topic, partitions = sys.argv
        self._partitions = int(partitions)
        self._sent = self._answered = 0

    @property
    def has_room(self) -> bool:
        return self._sent * self._partitions - self._answered < UNANSWERED_MAX

    def burst(self) -> Iterator[tuple[int, int]]:
        """Number and partition of the records that are next; the caller sends all of them."""
        first, self._sent = self._sent, self._sent + BURST
        tell("sent", self._sent)
        for number in range(first, self._sent):
            for partition in range(self._partitions):
                yield number, partition

    def acked(self, partition: int, number: int, offset: int) -> None:
        self._answered += 1
        tell("acked", partition, number, offset)

    def failed(self, partition: int, number: int, reason: object) -> None:
        self._answered += 1
        tell("failed", partition, number, reason)


def tell(*words: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, words))}\n")


def await_start() -> threading.Event:
    """Returns when the program shall begin; the event is set when it shall stop."""
    ended = threading.Event()

    def read() -> None:
        sys.stdin.read()
        ended.set()

    tell("ready")
    sys.stdout.flush()
    sys.stdin.readline()
    threading.Thread(target=read, daemon=True).start()
    return ended
