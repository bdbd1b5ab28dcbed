"""Checks of the promises that the engine relies on in a metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from streamlog.doctor.findings import Check, CheckFailed, Doubtful, Good, milliseconds, percentile
from streamlog.errors import Invalid, NotFound, StreamlogError
from streamlog.kvstore.interface import (
    OPERATIONS_MAX,
    TXN_BYTES_MAX,
    Compare,
    Delete,
    Get,
    KVStore,
    Put,
    RevisionIs,
    ValueIs,
    prefix_end,
)
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random

PREFIX = b"/streamlog-doctor/"
RACERS = 32
TRANSACTIONS = 100
VALUE_BYTES = 256
BUDGET_S = 10.0
LEASE_TTL_MS = 500
LEASE_WAIT_S = 20.0
P99_S_WARN = 1.0
_OVERHEAD_BYTES = 1024
"""Bytes of a transaction that a remote store's framing may use."""


class MetaScratch:
    """A KVStore and a prefix of its own, which `remove` empties."""

    def __init__(self, kv: KVStore, clock: Clock, random: Random) -> None:
        self.kv = kv
        self.clock = clock
        self.random = random
        self.prefix = PREFIX + random.bytes(8).hex().encode() + b"/"

    def key(self, name: str) -> bytes:
        return self.prefix + name.encode()

    async def remove(self) -> str:
        """Deletes everything; returns what could not be deleted, empty: everything was."""
        try:
            await self.kv.txn((), (Delete(self.prefix, prefix_end(self.prefix)),))
        except StreamlogError as error:
            return f"{type(error).__name__}: {error.message}"
        return ""


async def limits(meta: MetaScratch) -> Good:
    """The store takes the largest transaction that the engine may send."""
    full = [Put(meta.key(f"limit/{number:03d}"), b"x") for number in range(OPERATIONS_MAX)]
    await meta.kv.txn((), full)
    written = await meta.kv.range(meta.key("limit/"), prefix_end(meta.key("limit/")))
    if len(written.kvs) != OPERATIONS_MAX:
        raise CheckFailed(
            f"{len(written.kvs)} of a transaction's {OPERATIONS_MAX} writes are there"
        )
    one_more = [*full, Put(meta.key("limit/more"), b"x")]
    await _refused(meta.kv.txn((), one_more), Invalid, f"{len(one_more)} operations")
    large = bytes(TXN_BYTES_MAX - _OVERHEAD_BYTES)
    await meta.kv.txn((), (Put(meta.key("large"), large),))
    kept = await meta.kv.get(meta.key("large"))
    if kept is None or kept.value != large:
        raise CheckFailed(f"a value of {len(large)} bytes did not come back")
    too_large = Put(meta.key("large"), bytes(TXN_BYTES_MAX + 1))
    await _refused(meta.kv.txn((), (too_large,)), Invalid, f"{TXN_BYTES_MAX + 1} bytes")
    await meta.kv.txn((), (Delete(meta.key("large")),))
    return Good(f"{OPERATIONS_MAX} operations and {TXN_BYTES_MAX >> 10} KiB a transaction")


async def compare_and_set(meta: MetaScratch) -> Good:
    """A transaction carries out one of its two branches, and one of many racers wins."""
    key = meta.key("cas")
    first = await meta.kv.txn((ValueIs(key, None),), (Put(key, b"a"),))
    again = await meta.kv.txn((RevisionIs(key, 0),), (Put(key, b"b"),), (Get(key),))
    if not first.succeeded or again.succeeded:
        raise CheckFailed("a key that must be absent was written twice")
    if [kv.value for kv in again.responses[0]] != [b"a"]:
        raise CheckFailed("the other branch of a refused transaction did not see the value")
    kept = await meta.kv.get(key)
    if kept is None or kept.value != b"a" or kept.mod_revision != first.revision:
        raise CheckFailed("a refused transaction changed the key")
    compare: Compare = RevisionIs(key, kept.mod_revision)
    tries = [meta.kv.txn((compare,), (Put(key, b"%d" % number),)) for number in range(RACERS)]
    won = [number for number, one in enumerate(await asyncio.gather(*tries)) if one.succeeded]
    if len(won) != 1:
        raise CheckFailed(f"{len(won)} of {RACERS} racing transactions won; exactly one must")
    kept = await meta.kv.get(key)
    if kept is None or kept.value != b"%d" % won[0]:
        raise CheckFailed("the value is not the winner's")
    return Good(f"of {RACERS} racing transactions exactly one won; refused ones change nothing")


async def revisions(meta: MetaScratch) -> Good:
    """All keys share one revision counter; keys can be read at an older revision."""
    key = meta.key("revision")
    first = (await meta.kv.txn((), (Put(key, b"1"),))).revision
    second = (await meta.kv.txn((), (Put(key, b"2"),))).revision
    now = await meta.kv.revision()
    if not first < second <= now:
        raise CheckFailed(f"revisions do not rise: {first}, {second}, then {now}")
    old, new = await meta.kv.get(key, revision=first), await meta.kv.get(key)
    if old is None or new is None or (old.value, new.value) != (b"1", b"2"):
        raise CheckFailed("a read at an older revision does not show what was there")
    return Good(f"reads at an older revision see it; now at {now}")


async def watching(meta: MetaScratch) -> Good:
    """A watch delivers all changes from a revision on, in order, those of a revision together."""
    start = meta.key("watch/")
    first, second = meta.key("watch/1"), meta.key("watch/2")
    before = await meta.kv.revision()
    made = [
        (await meta.kv.txn((), operations)).revision
        for operations in (
            (Put(first, b"a"), Put(second, b"a")),
            (Put(first, b"b"),),
            (Delete(start, prefix_end(start)),),
        )
    ]
    watch = meta.kv.watch(start, prefix_end(start), from_revision=before + 1)
    try:
        seen = [await anext(watch) for _ in made]
    finally:
        await watch.aclose()
    if [batch.revision for batch in seen] != made:
        raise CheckFailed(
            f"changes of revisions {made} came as {[batch.revision for batch in seen]}"
        )
    if [len(batch.changes) for batch in seen] != [2, 1, 2]:
        raise CheckFailed("the changes of one revision did not come together")
    if any(change.kv is not None for change in seen[2].changes):
        raise CheckFailed("a deletion came as something else")
    return Good("changes come whole and in order")


async def leases(meta: MetaScratch) -> Good:
    """A lease's keys are deleted when it is revoked, and when it is not kept alive."""
    key = meta.key("lease/revoked")
    lease = await meta.kv.grant_lease(60_000)
    await meta.kv.txn((), (Put(key, b"", lease),))
    await meta.kv.keep_alive(lease)
    await meta.kv.revoke_lease(lease)
    if await meta.kv.get(key) is not None:
        raise CheckFailed("the key of a revoked lease is still there")
    await _refused(meta.kv.keep_alive(lease), NotFound, "keeping a revoked lease")
    key = meta.key("lease/expires")
    lease = await meta.kv.grant_lease(LEASE_TTL_MS)
    put = await meta.kv.txn((), (Put(key, b"", lease),))
    watch = meta.kv.watch(key, prefix_end(key), from_revision=put.revision + 1)
    began = meta.clock.monotonic()
    try:
        async with asyncio.timeout(LEASE_WAIT_S):
            await anext(watch)
    except TimeoutError:
        raise CheckFailed(
            f"a lease of {LEASE_TTL_MS} ms has not ended after {LEASE_WAIT_S} s"
        ) from None
    finally:
        await watch.aclose()
    waited = meta.clock.monotonic() - began
    return Good(f"revoked at once; one of {LEASE_TTL_MS} ms ended after {milliseconds(waited)}")


async def latency(meta: MetaScratch) -> Good:
    """Measures durable transactions as a commit makes them, one at a time."""
    key, body = meta.key("latency"), meta.random.bytes(VALUE_BYTES)
    clock, seconds = meta.clock, list[float]()
    ends_at = clock.monotonic() + BUDGET_S
    revision = 0
    while len(seconds) < TRANSACTIONS and (not seconds or clock.monotonic() < ends_at):
        began = clock.monotonic()
        done = await meta.kv.txn((RevisionIs(key, revision),), (Put(key, body),))
        seconds.append(clock.monotonic() - began)
        if not done.succeeded:
            raise CheckFailed("a transaction did not see what the one before it wrote")
        revision = done.revision
    seconds.sort()
    p50, p99 = percentile(seconds, 0.5), percentile(seconds, 0.99)
    figures = {"txn_p50_ms": p50 * 1000, "txn_p99_ms": p99 * 1000}
    summary = f"p50 {milliseconds(p50)}, p99 {milliseconds(p99)} ({len(seconds)} transactions)"
    if p99 > P99_S_WARN:
        raise Doubtful(summary, "every commit waits for one: put it on a faster disk", figures)
    return Good(summary, figures)


async def _refused(call: Awaitable[Any], kind: type[StreamlogError], what: str) -> None:
    try:
        await call
    except kind:
        return
    raise CheckFailed(f"{what}: must be refused with {kind.__name__}, and was not")


_ADVICE = "use a metadata store of a version that this release names, without a proxy in between"

CHECKS: tuple[Check[MetaScratch], ...] = (
    Check("meta.limits", limits, "raise the store's limits (etcd: --max-txn-ops, request bytes)"),
    Check("meta.compare_and_set", compare_and_set, _ADVICE),
    Check("meta.revision", revisions, _ADVICE),
    Check("meta.watch", watching, _ADVICE),
    Check("meta.lease", leases, _ADVICE),
    Check("meta.latency", latency, "look at the store's own log"),
)
