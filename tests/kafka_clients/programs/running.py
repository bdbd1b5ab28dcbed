"""What the programs in Python share: the records that they write, and the loop over cases."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

BASE_MS = 1_767_225_600_000
SOON_S = 10.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

TRANSACTIONS = (("c", True), ("a", False), ("d", True))
"""Values begin with the letter, and the number of their partition follows; True: committed."""
TRANSACTION_PARTITIONS = 3
SHORT_TIMEOUT_MS = 3000
TOO_LONG_MS = 900_001

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """A record that is written, and compared with what is read."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


RECORDS = [
    Record(
        b"k0", b"v0", [("trace", b"7"), ("empty", b""), ("null", None), ("trace", b"8")], BASE_MS
    ),
    Record(None, b"plain", [], BASE_MS + 1000),
    Record(b"k2", None, [], BASE_MS + 2000),
    Record(b"", b"", [("h", "é".encode())], BASE_MS + 3000),
    Record(b"k4", "é".encode() * 500, [], BASE_MS + 4000),
]


def run(cases: Mapping[str, Callable[[], object]]) -> None:
    """Runs all cases; one that fails does not stop the others."""
    for name, case in cases.items():
        began, error = time.monotonic(), None
        try:
            case()
        except Exception:  # noqa: BLE001
            error = traceback.format_exc()
        _tell(name, error, time.monotonic() - began)


async def run_async(cases: Mapping[str, Callable[[], Awaitable[object]]]) -> None:
    """As `run`, for coroutines."""
    for name, case in cases.items():
        began, error = time.monotonic(), None
        try:
            await case()
        except Exception:  # noqa: BLE001
            error = traceback.format_exc()
        _tell(name, error, time.monotonic() - began)


def _tell(name: str, error: str | None, seconds: float) -> None:
    print(json.dumps({"case": name, "error": error, "seconds": round(seconds, 2)}), flush=True)


def arguments() -> tuple[str, str]:
    """Bootstrap address, and the prefix of topics' names."""
    _, bootstrap, prefix = sys.argv
    return bootstrap, prefix


def expect(seen: object, wanted: object) -> None:
    if seen != wanted:
        raise AssertionError(f"expected {wanted!r}, saw {seen!r}")


def expect_soon(look: Callable[[], object], wanted: object) -> None:
    """Kafka answers a change before its brokers have heard of it."""
    give_up_at = time.monotonic() + SOON_S
    while (seen := look()) != wanted and time.monotonic() < give_up_at:
        time.sleep(0.01)
    expect(seen, wanted)


def transactional_values(partition: int, *, are_committed: bool) -> list[tuple[int, bytes]]:
    """Offset and value of each record that a reader of the partition sees; markers lie between."""
    return [
        (2 * number, f"{letter}{partition}".encode())
        for number, (letter, is_committed) in enumerate(TRANSACTIONS)
        if is_committed or not are_committed
    ]


def expect_records(seen: Sequence[Record], wanted: Sequence[Record] = RECORDS) -> None:
    expect(len(seen), len(wanted))
    for one, other in zip(seen, wanted, strict=True):
        expect(one, other)
