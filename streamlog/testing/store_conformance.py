"""The contract of ObjectStore: inherit `ObjectStoreConformance` and say how to make a store.

The rules are those of `streamlog.objectstore.interface`; each test shows one through it alone.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.errors import (
    AlreadyExists,
    Closed,
    Invalid,
    InvalidName,
    ObjectNotFound,
    StreamlogError,
    ValueConflict,
)
from streamlog.objectstore.interface import ObjectInfo, ObjectStore, PiecewiseStore
from streamlog.runtime.buffers import Buffer
from streamlog.testing.clocks import ManualClock

RACERS = 32
MIB = 1 << 20

BAD_KEYS = (
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a/..",
    ".hidden",
    "a/.hidden",
    "A",
    "a b",
    "a\n",
    "a\x00b",
    "a\\b",
    "é",
    "-a",
    "a?b",
    "a" * 201,
    "/".join(["a" * 90] * 12),
    "x" * 10_000,
)


async def list_all(store: ObjectStore, prefix: str, limit: int = 1000) -> list[str]:
    found: list[str] = []
    token = None
    while True:
        page = await store.list(prefix, token=token, limit=limit)
        assert len(page.objects) <= limit
        found += [info.key for info in page.objects]
        if page.next_token is None:
            return found
        token = page.next_token


async def read(store: ObjectStore, key: str) -> bytes:
    return bytes(await store.get(key))


class Pieces:
    """What `get_pieces` hands out, each piece once: a request that is slow may be repeated, and its
    pieces come again, and even after the call.
    """

    def __init__(self, wanted: int) -> None:
        self.first: dict[int, bytes] = {}
        """By the number of the piece, in the order in which the pieces came first."""
        self.different: list[int] = []
        """Pieces whose repetition had other bytes."""
        self._wanted = wanted

    def arrived(self, number: int, piece: Buffer) -> bool:
        if self.first.setdefault(number, bytes(piece)) != piece:
            self.different.append(number)
        return number + 1 < self._wanted


class ObjectStoreConformance(ABC):
    large_mib = 33
    """Size of objects that the store sends in parts."""
    tells_own_time = False
    """Whether modification times are the store's own, in whole seconds, and not `clock`'s."""
    has_pieces = True
    """Whether GETs are handed out piece by piece."""

    @abstractmethod
    def store(self, clock: ManualClock) -> AbstractAsyncContextManager[ObjectStore]:
        """An empty store."""

    def run(self, body: Callable[[ObjectStore, ManualClock], Awaitable[None]]) -> None:
        async def main() -> None:
            clock = ManualClock()
            async with self.store(clock) as store:
                await body(store, clock)

        asyncio.run(main())

    def same(self, info: ObjectInfo, put: ObjectInfo) -> bool:
        """Whether `info` equals the result of a put; a remote store's times may differ a little."""
        apart_ms = 2000 if self.tells_own_time else 0
        return (info.key, info.size_bytes, info.etag) == (put.key, put.size_bytes, put.etag) and (
            abs(info.modified_ms - put.modified_ms) <= apart_ms
        )

    # put and get

    def test_what_was_put_is_read_back(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            info = await store.put("data/one", (b"abc", memoryview(b"def"), bytearray(b"g")))
            assert (info.key, info.size_bytes) == ("data/one", 7)
            assert await read(store, "data/one") == b"abcdefg"
            assert self.same(await store.head("data/one"), info)

        self.run(body)

    def test_an_empty_object_is_an_object(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            assert (await store.put("empty", ())).size_bytes == 0
            assert (await store.put("empty2", (b"",))).size_bytes == 0
            assert await read(store, "empty") == b""
            assert (await store.head("empty")).size_bytes == 0
            assert await list_all(store, "") == ["empty", "empty2"]

        self.run(body)

    def test_many_and_large_parts(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            many = [bytes([n % 251]) * (n % 7) for n in range(5_000)]
            await store.put("many", many)
            assert await read(store, "many") == b"".join(many)
            large = bytes(range(256)) * (1 << 14)
            await store.put("large", (large, b"", large))
            assert await read(store, "large") == large + large

        self.run(body)

    def test_large_objects(self) -> None:
        """Objects larger than one upload part, with parts that end anywhere."""

        async def body(store: ObjectStore, clock: ManualClock) -> None:
            data = bytes(range(256)) * (self.large_mib * MIB // 256) + b"tail"
            cuts = (0, 1, 70_000, 5 * MIB + 3, 20 * MIB - 1, len(data))
            parts = [memoryview(data)[a:b] for a, b in itertools.pairwise(cuts)]
            info = await store.put("large", parts)
            assert info.size_bytes == len(data)
            assert self.same(await store.head("large"), info)
            assert await store.get("large") == data
            for start in (0, 16 * MIB - 2, len(data) - 3):
                assert bytes(await store.get("large", start, 4)) == data[start : start + 4]
            assert await list_all(store, "") == ["large"]

        self.run(body)

    def test_a_put_replaces(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            first = await store.put("a", (b"first, longer",))
            second = await store.put("a", (b"second",))
            assert first.etag != second.etag
            assert await read(store, "a") == b"second"
            assert (await store.head("a")).etag == second.etag

        self.run(body)

    def test_a_later_change_of_the_buffer_changes_nothing(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            buffer = bytearray(b"before")
            await store.put("a", (buffer,))
            buffer[:] = b"after!"
            assert await read(store, "a") == b"before"

        self.run(body)

    def test_the_same_bytes_put_twice_are_there_once(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            for _ in range(2):
                await store.put("a/b", (b"same",))
            assert await list_all(store, "") == ["a/b"]
            assert await read(store, "a/b") == b"same"

        self.run(body)

    def test_ranged_gets(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            data = bytes(range(200))
            await store.put("a", (data,))
            for start, length in ((0, 10), (5, 20), (190, 10), (190, 100), (0, None), (150, None)):
                end = None if length is None else start + length
                assert bytes(await store.get("a", start, length)) == data[start:end]
            assert bytes(await store.get("a", 7, 0)) == b""
            assert bytes(await store.get("a", 200, 5)) == b""
            assert bytes(await store.get("a", 200)) == b""
            for bad_start, bad_length in ((201, 1), (201, None), (-1, 5), (0, -1)):
                with pytest.raises(Invalid) as raised:
                    await store.get("a", bad_start, bad_length)
                assert not isinstance(raised.value, ObjectNotFound)

        self.run(body)

    def test_gets_piece_by_piece(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            assert isinstance(store, PiecewiseStore) == self.has_pieces
            if not isinstance(store, PiecewiseStore):
                return
            data = bytes(range(250)) * 8
            await store.put("a", (data,))
            for start, sizes, told in (
                (0, (2000,), (2000,)),
                (0, (1, 1998, 1), (1, 1998, 1)),
                (7, (100, 200, 300), (100, 200, 300)),
                (1500, (200, 200, 200, 200), (200, 200, 100)),
                (1800, (100, 100, 100, 100), (100, 100, 0)),
                (2000, (10, 10), (0,)),
            ):
                pieces = Pieces(wanted=9)
                await store.get_pieces("a", start, sizes, pieces.arrived)
                assert list(pieces.first) == list(range(len(told)))
                assert tuple(map(len, pieces.first.values())) == told
                assert b"".join(pieces.first.values()) == data[start : start + sum(sizes)]
                assert not pieces.different
            for start in (2001, -1):
                with pytest.raises(Invalid) as invalid:
                    await store.get_pieces("a", start, (1, 1), pieces.arrived)
                assert not isinstance(invalid.value, ObjectNotFound)
            with pytest.raises(ObjectNotFound) as absent:
                await store.get_pieces("b", 0, (1, 1), pieces.arrived)
            assert absent.value.object_key == "b"

        self.run(body)

    def test_a_get_ends_when_the_rest_is_not_wanted(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            if not isinstance(store, PiecewiseStore):
                return
            await store.put("a", (bytes(3 * MIB),))
            for _ in range(20):
                pieces = Pieces(wanted=2)
                await store.get_pieces("a", 0, (MIB, MIB, MIB), pieces.arrived)
                assert list(pieces.first) == [0, 1]
            assert len(await store.get("a")) == 3 * MIB

        self.run(body)

    def test_absent_objects(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            await store.put("a/b", (b"x",))
            for key in ("b", "a", "a/b/c", "a/bb"):
                uses: list[Awaitable[object]] = [
                    store.get(key),
                    store.get(key, 5, 5),
                    store.head(key),
                ]
                # Some stores keep keys as paths, and raise other errors below an object.
                if key != "a/b/c":
                    uses.append(store.put_if_match(key, (b"y",), "etag"))
                for use in uses:
                    with pytest.raises(ObjectNotFound) as raised:
                        await use
                    assert raised.value.object_key == key

        self.run(body)

    def test_the_modification_time_is_the_clocks(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            first = await store.put("a", (b"x",))
            if self.tells_own_time:
                listed = (await store.list("a")).objects[0]
                assert abs(first.modified_ms - listed.modified_ms) <= 2000
                return
            assert abs(first.modified_ms - clock.now_ms()) <= 1000
            clock.advance(3_600_000)
            second = await store.put("b", (b"x",))
            assert second.modified_ms - first.modified_ms == 3_600_000

        self.run(body)

    # conditions

    def test_if_absent_has_one_winner(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            results = await asyncio.gather(
                *(store.put("x/only", (b"%d" % n,), if_absent=True) for n in range(RACERS)),
                return_exceptions=True,
            )
            winners = [n for n, result in enumerate(results) if not isinstance(result, Exception)]
            assert len(winners) == 1
            assert sum(isinstance(result, AlreadyExists) for result in results) == RACERS - 1
            assert await read(store, "x/only") == b"%d" % winners[0]
            assert await list_all(store, "") == ["x/only"]
            await store.delete(["x/only"])
            await store.put("x/only", (b"again",), if_absent=True)
            assert await read(store, "x/only") == b"again"

        self.run(body)

    def test_if_match_replaces_only_what_was_read(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            first = await store.put("a", (b"1",))
            second = await store.put_if_match("a", (b"2",), first.etag)
            assert await read(store, "a") == b"2"
            with pytest.raises(ValueConflict):
                await store.put_if_match("a", (b"3",), first.etag)
            assert await read(store, "a") == b"2"
            await store.put_if_match("a", (b"4",), (await store.head("a")).etag)
            with pytest.raises(ValueConflict):
                await store.put_if_match("a", (b"5",), second.etag)
            assert await read(store, "a") == b"4"

        self.run(body)

    def test_if_match_has_one_winner(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            first = await store.put("a", (b"first",))
            results = await asyncio.gather(
                *(store.put_if_match("a", (b"%d" % n,), first.etag) for n in range(RACERS)),
                return_exceptions=True,
            )
            winners = [n for n, result in enumerate(results) if not isinstance(result, Exception)]
            assert len(winners) == 1
            assert sum(isinstance(result, ValueConflict) for result in results) == RACERS - 1
            assert await read(store, "a") == b"%d" % winners[0]

        self.run(body)

    def test_a_condition_that_fails_changes_nothing(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            first = await store.put("a", (b"first",), if_absent=True)
            for _ in range(2):
                with pytest.raises(AlreadyExists) as taken:
                    await store.put("a", (b"other",), if_absent=True)
                assert taken.value.has_no_side_effects
                with pytest.raises(ValueConflict):
                    await store.put_if_match("a", (b"other",), f"{first.etag}-not")
                assert await read(store, "a") == b"first"
            await store.delete(["a"])
            with pytest.raises(ObjectNotFound):
                await store.put_if_match("a", (b"other",), first.etag)
            assert await list_all(store, "") == []

        self.run(body)

    def test_conditions_hold_for_large_objects(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            piece = bytes(MIB)
            first = await store.put("a", (piece,) * self.large_mib, if_absent=True)
            with pytest.raises(AlreadyExists):
                await store.put("a", (b"x",) + (piece,) * self.large_mib, if_absent=True)
            second = await store.put_if_match("a", (b"y", *(piece,) * self.large_mib), first.etag)
            with pytest.raises(ValueConflict):
                await store.put_if_match("a", (b"z", *(piece,) * self.large_mib), first.etag)
            assert (await store.head("a")).etag == second.etag
            assert bytes(await store.get("a", 0, 2)) == b"y\0"

        self.run(body)

    def test_if_match_loses_no_update(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            await store.put("n", (b"00",))

            async def increment() -> None:
                while True:
                    info = await store.head("n")
                    value = int(await read(store, "n"))
                    try:
                        await store.put_if_match("n", (b"%02d" % (value + 1),), info.etag)
                    except ValueConflict:
                        continue
                    return

            await asyncio.gather(*(increment() for _ in range(8)))
            # A reader may see a value newer than its etag, then its replacement is refused.
            assert await read(store, "n") == b"08"

        self.run(body)

    def test_etags_tell_contents_apart(self) -> None:
        """Same size, same instant, names and inodes used again."""

        async def body(store: ObjectStore, clock: ManualClock) -> None:
            first = await store.put("a", (b"AAAA",))
            await store.delete(["a"])
            for n in range(20):
                assert (await store.put("a", (b"%04d" % n,))).etag != first.etag
            with pytest.raises(ValueConflict):
                await store.put_if_match("a", (b"x",), first.etag)

        self.run(body)

    # lists

    def test_lists_are_by_key_and_prefix(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            names = [
                "a",
                "a-b/c",
                "a.b",
                "b/a",
                "b/a-x/y",
                "b/a.x",
                "b/aa/c/d",
                "b0",
                "c/1",
                "c/10",
                "c/2",
            ]
            for name in reversed(names):
                await store.put(name, (name.encode(),))
            assert await list_all(store, "") == sorted(names)
            prefixes = (
                "a",
                "b",
                "b/",
                "b/a",
                "b/aa/",
                "b/aa/c/d",
                "c/1",
                "c/10",
                "c/11",
                "d",
                "d/e",
            )
            for prefix in prefixes:
                expected = sorted(name for name in names if name.startswith(prefix))
                for limit in (1, 2, 3, 1000):
                    assert await list_all(store, prefix, limit) == expected, (prefix, limit)
            page = await store.list("b/a", limit=2)
            assert [info.size_bytes for info in page.objects] == [3, 7]
            assert await store.head("b/a") == page.objects[0]

        self.run(body)

    def test_a_page_token_can_be_used_again(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            for n in range(10):
                await store.put(f"k/{n}", (b"",))
            token = (await store.list("k/", limit=3)).next_token
            assert token is not None
            for _ in range(2):
                page = await store.list("k/", token=token, limit=4)
                assert [info.key for info in page.objects] == ["k/3", "k/4", "k/5", "k/6"]

        self.run(body)

    def test_what_was_deleted_is_in_no_later_page(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            for n in range(10):
                await store.put(f"k/{n}", (b"",))
            page = await store.list("k/", limit=3)
            await store.delete(["k/4", "k/5", "k/9"])
            assert page.next_token is not None
            page = await store.list("k/", token=page.next_token, limit=10)
            assert [info.key for info in page.objects] == ["k/3", "k/6", "k/7", "k/8"]
            assert page.next_token is None

        self.run(body)

    def test_lists_of_many_pages(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            names = [f"k/{n:03}" for n in range(120)]
            await asyncio.gather(*(store.put(name, (b"",)) for name in names))
            await store.put("l/000", (b"",))
            for limit in (7, 40, 60, 119, 120, 121):
                assert await list_all(store, "k/", limit) == names
            await store.delete(names)
            assert await list_all(store, "") == ["l/000"]

        self.run(body)

    def test_a_finished_put_is_in_the_next_list(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            assert await list_all(store, "") == []
            for n in range(5):
                await store.put(f"k/{n}", (b"",))
                assert len(await list_all(store, "k/")) == n + 1

        self.run(body)

    def test_a_page_holds_at_least_one_object(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            with pytest.raises(Invalid):
                await store.list("", limit=0)

        self.run(body)

    # deletes

    def test_deletes(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            for name in ("a", "b/c", "b/d"):
                await store.put(name, (b"x",))
            await store.delete(["a", "b/c", "absent", "b/absent/x"])
            await store.delete(["a"])
            await store.delete([])
            await store.delete(["b"])
            assert await list_all(store, "") == ["b/d"]
            with pytest.raises(ObjectNotFound):
                await store.get("a")

        self.run(body)

    # names and the rest

    def test_bad_keys_are_refused(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            for key in BAD_KEYS:
                for use in (
                    store.put(key, (b"x",)),
                    store.put_if_match(key, (b"x",), "etag"),
                    store.get(key),
                    store.head(key),
                    store.delete(["fine", key]),
                ):
                    with pytest.raises(InvalidName) as raised:
                        await use
                    assert len(str(raised.value)) < 500
            with pytest.raises(InvalidName):
                await store.list("../")
            assert await list_all(store, "") == []

        self.run(body)

    def test_concurrent_puts_and_gets_see_whole_objects(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            await store.put("a", (b"0" * 100_000,))

            async def write(digit: int) -> None:
                for _ in range(10):
                    await store.put("a", (b"%d" % digit * 50_000,) * 2)

            async def check() -> None:
                for _ in range(30):
                    found = await read(store, "a")
                    assert len(found) == 100_000
                    assert len(set(found)) == 1

            await asyncio.gather(write(1), write(2), check(), check())

        self.run(body)

    def test_after_close_everything_says_so(self) -> None:
        async def body(store: ObjectStore, clock: ManualClock) -> None:
            await store.put("a", (b"x",))
            await store.close()
            uses: tuple[Awaitable[object], ...] = (
                store.put("a", (b"x",)),
                store.get("a"),
                store.head("a"),
                store.list(""),
                store.delete(["a"]),
            )
            for use in uses:
                with pytest.raises(Closed) as raised:
                    await use
                assert isinstance(raised.value, StreamlogError)
            await store.close()

        self.run(body)
