"""Measures how far the store's clock is off, and how fast the store is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from streamlog.doctor.findings import (
    ROOM_ADVICE,
    Check,
    CheckFailed,
    Doubtful,
    Good,
    milliseconds,
    percentile,
)
from streamlog.objectstore.trust.scratch import Scratch

MIB = 1 << 20
SMALL_BYTES = 4096
SMALL_REQUESTS = 100
LARGE_BYTES = 8 * MIB
LARGE_REQUESTS = 12
LARGE_ROOM_BYTES = 2 * LARGE_REQUESTS * LARGE_BYTES
"""Room from which the large requests leave half to a node on the same disk."""
IN_FLIGHT = 4
BUDGET_S = 15.0
"""Longest measurement of each kind of request; at least one request is measured."""
SKEW_S_WARN, SKEW_S_FAIL = 5.0, 300.0
RESOLUTION_S = 1.0
"""Stores report times in whole seconds."""
PUT_P50_S_WARN = 0.5


async def clock_skew(scratch: Scratch) -> Good:
    """Compares this machine's clock with the modification time of a new object."""
    before = scratch.clock.now_ms()
    await scratch.put("clock", b"tick")
    after = scratch.clock.now_ms()
    stored = (await scratch.head("clock")).modified_ms
    ahead = max(0.0, (stored - after) / 1000)
    behind = max(0.0, (before - stored) / 1000 - RESOLUTION_S)
    skew = ahead or -behind
    figures = {"skew_s": skew}
    summary = f"the store's clock is {abs(skew):.1f} s {'ahead' if ahead else 'behind'}"
    if abs(skew) > SKEW_S_FAIL:
        raise CheckFailed(summary)
    if abs(skew) > SKEW_S_WARN:
        raise Doubtful(summary, _CLOCK_ADVICE, figures)
    return Good(f"this machine and the store agree within {max(1.0, abs(skew)):.0f} s", figures)


async def latency(scratch: Scratch) -> Good:
    """Measures small requests, one at a time."""
    body = scratch.random.bytes(SMALL_BYTES)
    puts = await _timed(
        scratch, SMALL_REQUESTS, 1, lambda number: scratch.put(f"small/{number}", body)
    )
    gets = await _timed(scratch, len(puts), 1, lambda number: scratch.get(f"small/{number}"))
    figures = {
        f"{kind}_{name}_ms": percentile(found, share) * 1000
        for kind, found in (("put", puts), ("get", gets))
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }
    summary = (
        f"PUT {_p50_p99(puts)}, GET {_p50_p99(gets)} of {SMALL_BYTES} bytes "
        f"({len(puts)} and {len(gets)} requests)"
    )
    if percentile(puts, 0.5) > PUT_P50_S_WARN:
        raise Doubtful(
            summary,
            "with wal=object each acknowledgement waits for a PUT: use a nearer store or wal=disk",
            figures,
        )
    return Good(summary, figures)


async def throughput(scratch: Scratch) -> Good:
    """Measures large requests, several in flight."""
    body = scratch.random.bytes(LARGE_BYTES)
    clock = scratch.clock

    async def put(number: int) -> object:
        return await scratch.put(f"bulk/{number}", number.to_bytes(8, "little"), body)

    began = clock.monotonic()
    puts = await _timed(scratch, LARGE_REQUESTS, IN_FLIGHT, put)
    put_s = clock.monotonic() - began
    began = clock.monotonic()
    gets = await _timed(scratch, len(puts), IN_FLIGHT, lambda number: scratch.get(f"bulk/{number}"))
    get_s = clock.monotonic() - began
    put_rate = len(puts) * LARGE_BYTES / MIB / max(put_s, 1e-9)
    get_rate = len(gets) * LARGE_BYTES / MIB / max(get_s, 1e-9)
    await scratch.delete(*(f"bulk/{number}" for number in range(LARGE_REQUESTS)))
    return Good(
        f"PUT {put_rate:.0f} MiB/s, GET {get_rate:.0f} MiB/s with {IN_FLIGHT} requests of 8 MiB in "
        f"flight; one PUT {_p50_p99(puts)}",
        {
            "put_mib_per_s": put_rate,
            "get_mib_per_s": get_rate,
            "put_p50_ms": percentile(puts, 0.5) * 1000,
            "put_p99_ms": percentile(puts, 0.99) * 1000,
        },
    )


async def _not_measured(_: Scratch) -> Good:
    raise Doubtful(
        f"not measured: it writes {LARGE_REQUESTS * LARGE_BYTES // MIB} MiB, for which a nearly "
        "full disk has no room",
        ROOM_ADVICE,
    )


async def _timed(
    scratch: Scratch, count: int, in_flight: int, request: Callable[[int], Awaitable[object]]
) -> list[float]:
    """Seconds of each request, sorted; none begins after the budget."""
    clock, seconds = scratch.clock, list[float]()
    ends_at = clock.monotonic() + BUDGET_S
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            began = clock.monotonic()
            if number and began > ends_at:
                return
            await request(number)
            seconds.append(clock.monotonic() - began)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(work())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return sorted(seconds)


def _p50_p99(seconds: Sequence[float]) -> str:
    p50, p99 = percentile(seconds, 0.5), percentile(seconds, 0.99)
    return f"p50 {milliseconds(p50)}, p99 {milliseconds(p99)}"


_CLOCK_ADVICE = (
    "set this machine's clock (NTP): deletion delays are measured with it, and S3 refuses requests "
    "that are 15 minutes off"
)

CHECKS: tuple[Check[Scratch], ...] = (
    Check("store.clock", clock_skew, _CLOCK_ADVICE),
    Check("store.latency", latency, "look at the store's own log"),
    Check("store.throughput", throughput, "look at the store's own log"),
)
NEARLY_FULL_CHECKS = (*CHECKS[:-1], Check("store.throughput", _not_measured, ROOM_ADVICE))
"""On a disk with less than LARGE_ROOM_BYTES."""
