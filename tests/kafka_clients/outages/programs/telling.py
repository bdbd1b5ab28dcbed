"""What the programs in Python share: their arguments, and how they say and are told things."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

PARTITIONS = 2
PAUSE_S = {"default": 5.0, "short": 1.0}
"""Between two calls of the admin client."""
_lock = threading.Lock()


class Arguments(NamedTuple):
    bootstrap: str
    prefix: str
    timeouts: str
    """"default": the client's own; "short"."""
    interval_s: float
    """Between two records of a writer."""
    record_bytes: int

    @property
    def is_short(self) -> bool:
        return self.timeouts == "short"

    @property
    def pause_s(self) -> float:
        return PAUSE_S[self.timeouts]

    def value(self, role: str, number: int) -> bytes:
        """A record: what it is, then bytes that nobody looks at."""
        return f"{role}-{number} ".encode().ljust(self.record_bytes, b".")


def arguments() -> Arguments:
    _, bootstrap, prefix, timeouts, interval_ms, record_bytes = sys.argv
    return Arguments(bootstrap, prefix, timeouts, int(interval_ms) / 1000, int(record_bytes))


def name_of(value: bytes | None) -> str:
    return (value or b"").split(b" ", 1)[0].decode()


def tell(*fields: object) -> None:
    line = "\t".join(" ".join(str(field).split()) for field in fields)
    with _lock:
        print(line, flush=True)


@contextmanager
def timed_call(name: str) -> Iterator[None]:
    """Tells how long its body took, and whether it failed."""
    began, error = time.monotonic(), ""
    try:
        yield
    except Exception as raised:  # noqa: BLE001
        error = f"{type(raised).__name__}: {raised}"
    tell("call", name, f"{time.monotonic() - began:.2f}", error)
