"""The tail cache and the single-flight LRU cache."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.cache.single_flight import SingleFlightCache
from streamlog.cache.tail import TailCache
from streamlog.errors import StoreUnavailable
from streamlog.format.entry import StreamEntry
from streamlog.runtime.concurrency.byte_semaphore import ByteSemaphore


def entry(base: int, size: int = 10, count: int = 2) -> StreamEntry:
    return StreamEntry(1, 1, base, count, 0, (bytes(size),), b"", 0)


def test_a_tail_returns_the_batch_that_contains_the_start() -> None:
    tail = TailCache(1000).tail(100)
    assert tail.first == tail.end == 100
    for base in (100, 102, 104):
        tail.push(entry(base), 10)
    assert tail.first == 100
    assert tail.end == 106
    assert [e.base_offset for e in tail.read(103, 106, 1000)] == [102, 104]
    assert [e.base_offset for e in tail.read(100, 102, 1000)] == [100]
    assert [e.base_offset for e in tail.read(100, 106, 1)] == [100]
    assert [e.base_offset for e in tail.read(100, 106, 20)] == [100, 102]


def test_only_committed_batches_are_dropped_the_oldest_first() -> None:
    cache = TailCache(30)
    tail, other_tail = cache.tail(0), cache.tail(0)
    entries = [entry(base) for base in (0, 2, 4)]
    other = entry(0)
    tail.push(entries[0], 10)
    other_tail.push(other, 10)
    tail.push(entries[1], 10)
    tail.push(entries[2], 10)
    assert cache.held_bytes == 40
    assert (tail.first, other_tail.first) == (0, 0)
    cache.committed([(tail, entries[0], 10)])
    assert (tail.first, other_tail.first) == (2, 0)
    assert cache.held_bytes + cache.committed_bytes == 30
    cache.committed([(other_tail, other, 10)])
    assert other_tail.first == 0
    tail.push(entry(6), 10)
    cache.committed([(tail, entries[1], 10)])
    assert other_tail.first == other_tail.end == 2
    assert tail.first == 2


def test_a_long_tail_forgets_payloads_as_it_goes() -> None:
    cache = TailCache(100)
    tail = cache.tail(0)
    for base in range(0, 4000, 2):
        batch = entry(base)
        tail.push(batch, 10)
        cache.committed([(tail, batch, 10)])
        assert tail.first == max(0, base - 18)
        assert [e.base_offset for e in tail.read(base, base + 2, 1)] == [base]
    assert cache.held_bytes == 0
    assert cache.committed_bytes == 100
    assert len(tail.read(tail.first, tail.end, 10_000)) == 10


def test_tiny_batches_are_charged_for_their_overhead() -> None:
    cache = TailCache(1000, 99)
    tail = cache.tail(0)
    for base in range(0, 200, 2):
        tail.push(entry(base, 1), 1)
    assert cache.memory_bytes == 100 * 100
    assert cache.held_bytes == 100
    batches = tail.read(0, 200, 1000)
    cache.committed([(tail, batch, 1) for batch in batches[:50]])
    assert (tail.first, cache.memory_bytes) == (100, 50 * 100)
    cache.committed([(tail, batch, 1) for batch in batches[50:]])
    assert (tail.first, cache.memory_bytes) == (180, 1000)
    assert (cache.held_bytes, cache.committed_bytes) == (0, 10)


def test_a_value_is_loaded_once_and_the_least_recently_used_goes() -> None:
    async def scenario() -> None:
        cache: SingleFlightCache[str, str] = SingleFlightCache(20)
        cache.begin("a")
        first = cache.pending("a")
        assert first is not None
        assert cache.pending("a") is first
        assert "a" in cache
        assert cache.peek("a") is None
        cache.finish("a", "A", 10)
        assert await first == "A"
        cache.begin("b")
        cache.finish("b", "B", 10)
        assert cache.peek("a") == "A"
        cache.begin("c")
        cache.finish("c", "C", 10)
        assert cache.peek("b") is None
        assert cache.peek("a") == "A"
        assert cache.size_bytes == 20
        cache.discard(lambda key: key == "a")
        assert cache.size_bytes == 10

    asyncio.run(scenario())


def test_every_waiter_gets_the_error_of_a_failed_load_which_is_not_kept() -> None:
    async def scenario() -> None:
        cache: SingleFlightCache[str, str] = SingleFlightCache(20)
        cache.begin("a")
        future = cache.pending("a")
        assert future is not None
        cache.fail("a", StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable):
            await asyncio.shield(future)
        assert "a" not in cache
        cache.begin("a")
        cache.finish("a", "A", 1)
        assert cache.peek("a") == "A"

    asyncio.run(scenario())


def test_values_of_a_group_stay_and_go_together() -> None:
    async def scenario() -> None:
        cache: SingleFlightCache[str, str] = SingleFlightCache(40)
        for key in ("a1", "a2", "b1", "b2"):
            cache.begin(key)
            cache.finish(key, key.upper(), 10, key[0])
        assert cache.peek("a1") == "A1"
        cache.begin("c")
        cache.finish("c", "C", 10)
        assert "b1" not in cache
        assert "b2" not in cache
        assert cache.peek("a2") == "A2"
        assert cache.size_bytes == 30

    asyncio.run(scenario())


def test_consumed_blocks_are_dropped_before_blocks_read_ahead() -> None:
    async def scenario() -> None:
        cache: SingleFlightCache[str, str] = SingleFlightCache(40)
        for key in ("a1", "a2", "b1", "b2"):
            cache.begin(key)
            cache.finish(key, key.upper(), 10, key[0])
        assert cache.peek("b1") == "B1"
        cache.retire("b1")
        cache.retire("b2")
        cache.retire("gone")
        cache.reserve(10)
        assert "b1" not in cache
        assert cache.peek("a1") == "A1"
        cache.retire("a1")
        # The rest of a group whose first values were consumed already has not been.
        cache.begin("x1")
        cache.finish("x1", "X1", 5, "x")
        cache.retire("x1")
        cache.begin("x2")
        cache.finish("x2", "X2", 5, "x")
        cache.reserve(10)
        assert "a2" not in cache
        assert cache.peek("x2") == "X2"
        cache.reserve(-20)
        assert cache.reserved_bytes == 0
        assert cache.size_bytes == 10

    asyncio.run(scenario())


def test_a_byte_semaphore_grants_in_order() -> None:
    async def scenario() -> None:
        gate = ByteSemaphore(10)
        order: list[str] = []
        go_on = asyncio.Event()

        async def pass_through(name: str, size_bytes: int) -> None:
            async with gate.holding(size_bytes):
                order.append(name)
                await go_on.wait()

        sizes = (("first", 6), ("large", 30), ("gone", 1), ("last", 4))
        tasks = [asyncio.ensure_future(pass_through(name, size)) for name, size in sizes]
        await asyncio.sleep(0)
        assert order == ["first"]
        tasks[2].cancel()
        go_on.set()
        await asyncio.wait(tasks)
        assert order == ["first", "large", "last"]
        async with gate.holding(10):
            pass

    asyncio.run(scenario())


def test_the_oldest_retired_group_is_dropped_first_unless_it_is_used_again() -> None:
    cache: SingleFlightCache[str, str] = SingleFlightCache(40)
    for key in "abcd":
        cache.begin(key)
        cache.finish(key, key, 10)
    for key in "abc":
        cache.retire(key)
    # Another reader comes behind.
    assert cache.peek("a") == "a"
    for key, left in (("e", "acde"), ("f", "adef"), ("g", "aefg")):
        cache.begin(key)
        cache.finish(key, key, 10)
        assert [letter for letter in "abcdefg" if letter in cache] == list(left)
    cache.retire("a")
    cache.discard(lambda key: key in "ag")
    assert cache.size_bytes == 20
