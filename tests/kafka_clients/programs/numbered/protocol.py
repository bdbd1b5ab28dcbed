"""What the programs in Python share: arguments, output, the end of the input, and settings."""

from __future__ import annotations

import sys
import threading

BURST = 10
"""Records for each partition between two looks at the answers."""
BATCH_BYTES = 1000
LINGER_MS = 2
PAUSE_S = 0.01
UNANSWERED_MAX = 1000
FLUSH_S = 120.0
BACKOFF_MS = 20
BACKOFF_MS_MAX = 100


def arguments() -> tuple[str, str, int]:
    """Bootstrap address, topic, count of partitions."""
    _, bootstrap, topic, partitions = sys.argv
    return bootstrap, topic, int(partitions)


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
