"""Checks of the promises that the engine relies on in an object store; each finds one violation.

The cluster's identity relies on `if_absent`, checkpoints and objects on read-after-write, readers
on ranges, garbage collection on lists and deletes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from streamlog.doctor.findings import Check, CheckFailed, Good
from streamlog.errors import (
    AlreadyExists,
    DiskFull,
    Invalid,
    ObjectNotFound,
    StoreUnavailable,
    StreamlogError,
    ValueConflict,
)
from streamlog.objectstore.trust.scratch import Scratch, parts_of

RACERS = 32
LISTED = 25
LIST_PAGE = 10
MIB = 1 << 20
LARGE_BYTES = 33 * MIB + 12_345
"""Past the size from which objects are stored in several parts (32 MiB), and no multiple of it."""
_READ_BYTES = 8 * MIB


async def read_after_write(scratch: Scratch) -> Good:
    """New objects are whole and visible at once."""
    for number, size in enumerate((0, 1, 1000, 100_000)):
        name, data = f"raw/{number}", scratch.random.bytes(size)
        info = await scratch.put(name, *parts_of(data, 4096))
        await _holds(scratch, name, data)
        head = await scratch.head(name)
        if (head.size_bytes, info.size_bytes) != (size, size):
            raise CheckFailed(f"an object of {size} bytes is said to have {head.size_bytes}")
        if head.etag != info.etag:
            raise CheckFailed(f"put said etag {info.etag!r}, head says {head.etag!r}")
    return Good("new objects are there at once, whole")


async def overwrite(scratch: Scratch) -> Good:
    """Every reader sees the newest bytes."""
    rounds, etag = 5, ""
    for number in range(rounds):
        data = scratch.random.bytes(1000 + number)
        info = await scratch.put("over", data)
        await _holds(scratch, "over", data)
        head = await scratch.head("over")
        if head.size_bytes != len(data) or head.etag != info.etag:
            raise CheckFailed(f"after overwrite {number} head still tells of an older object")
        if info.etag == etag:
            raise CheckFailed(f"other bytes have the same etag {etag!r}")
        etag = info.etag
        listed = (await scratch.page("over")).objects
        if [stored.size_bytes for stored in listed] != [len(data)]:
            raise CheckFailed(f"after overwrite {number} the list shows {_sizes(listed)}")
    return Good(f"{rounds} overwrites were each visible at once")


async def if_absent(scratch: Scratch) -> Good:
    """A conditional put takes a free key and refuses a taken one."""
    first, second = scratch.random.bytes(100), scratch.random.bytes(100)
    await scratch.put("absent", first, if_absent=True)
    await _refused(
        scratch.put("absent", second, if_absent=True), AlreadyExists, "put over a taken key"
    )
    await _holds(scratch, "absent", first)
    await scratch.delete("absent")
    await scratch.put("absent", second, if_absent=True)
    await _holds(scratch, "absent", second)
    return Good("a free key is taken, a taken one refused, a deleted one free again")


async def if_match(scratch: Scratch) -> Good:
    """A put replaces the object that it names, and no other."""
    first, second, third = (scratch.random.bytes(100 + number) for number in range(3))
    old = await scratch.put("match", first)
    new = await scratch.put_if_match("match", old.etag, second)
    await _holds(scratch, "match", second)
    await _refused(
        scratch.put_if_match("match", old.etag, third), ValueConflict, "put with an old etag"
    )
    await _holds(scratch, "match", second)
    await _refused(
        scratch.put_if_match("nothing", new.etag, third), ObjectNotFound, "put over an absent key"
    )
    if await scratch.names("nothing"):
        raise CheckFailed("a refused put over an absent key made an object")
    head = await scratch.head("match")
    await scratch.put_if_match("match", head.etag, third)
    await _holds(scratch, "match", third)
    return Good("the right etag replaces, an old one and an absent key are refused")


async def racers(scratch: Scratch) -> Good:
    """Of many conditional puts at a time exactly one wins, and its bytes stay."""
    for kind in ("if_absent", "if_match"):
        name = f"race/{kind}"
        bodies = [b"%d:" % number + scratch.random.bytes(64) for number in range(RACERS)]
        if kind == "if_absent":
            tries = [scratch.put(name, body, if_absent=True) for body in bodies]
        else:
            etag = (await scratch.put(name, b"before")).etag
            tries = [scratch.put_if_match(name, etag, body) for body in bodies]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        for outcome in outcomes:
            refused = isinstance(outcome, AlreadyExists | ValueConflict)
            if isinstance(outcome, BaseException) and not refused:
                raise outcome
        winners = [n for n, o in enumerate(outcomes) if not isinstance(o, BaseException)]
        if len(winners) != 1:
            raise CheckFailed(
                f"{len(winners)} of {RACERS} racers with {kind} won; exactly one must"
            )
        await _holds(scratch, name, bodies[winners[0]])
    return Good(f"of {RACERS} racers exactly one won, with if_absent and with if_match")


async def ranges(scratch: Scratch) -> Good:
    """Ranged gets, at the edges too."""
    size = 1000
    data = scratch.random.bytes(size)
    await scratch.put("range", data)
    await scratch.put("empty", b"")
    wanted: list[tuple[str, int, int | None]] = [
        *(("range", 0, 1), ("range", size - 1, 1), ("range", 100, 200), ("range", 0, size)),
        *(("range", size - 10, 100), ("range", 0, 2 * size), ("range", 500, None)),
        *(("range", size, None), ("range", size, 1), ("range", 10, 0)),
        *(("empty", 0, None), ("empty", 0, 1), ("empty", 0, 0)),
    ]
    for name, start, length in wanted:
        whole = data if name == "range" else b""
        expected = whole[start:] if length is None else whole[start : start + length]
        answer = await scratch.get(name, start, length)
        if answer != expected:
            raise CheckFailed(
                f"{'all' if length is None else length} bytes from {start} of an object of "
                f"{len(whole)}: got {_shown(answer)}, not {_shown(expected)}"
            )
    for name, start in (("range", size + 1), ("empty", 1)):
        await _refused(scratch.get(name, start, 1), Invalid, "a get from past the end")
    await _refused(scratch.get("no-such-object", 0, 1), ObjectNotFound, "a get of an absent key")
    return Good(f"{len(wanted) + 3} ranges: first, last, over the end, past it, of nothing")


async def listing(scratch: Scratch) -> Good:
    """Lists are complete, in order, and of now."""
    names = [f"list/{number:03d}" for number in range(LISTED)]
    beside = ["list-beside", "lis"]
    for name in (*names[::-1], *beside):
        await scratch.put(name, name.encode())
    keys = [scratch.prefix + name for name in names]
    listed: list[str] = []
    token: str | None = None
    sizes: list[int] = []
    while True:
        page = await scratch.page("list/", token=token, limit=LIST_PAGE)
        sizes.append(len(page.objects))
        listed += [info.key for info in page.objects]
        token = page.next_token
        if token is None:
            break
        if len(sizes) > LISTED:
            raise CheckFailed(f"a list of {LISTED} objects does not end after {len(sizes)} pages")
    if listed != keys:
        missing, more = set(keys) - set(listed), set(listed) - set(keys)
        raise CheckFailed(
            f"a list of {LISTED} objects in pages of {LIST_PAGE} has {len(listed)}: "
            f"{len(missing)} missing, {len(more)} of other prefixes, "
            f"{'in order' if listed == sorted(listed) else 'out of order'}"
        )
    if max(sizes) > LIST_PAGE:
        raise CheckFailed(f"a page of at most {LIST_PAGE} has {max(sizes)} objects")
    await scratch.put("list/new", b"new")
    await scratch.delete(names[0])
    now = await scratch.names("list/")
    if now != [*names[1:], "list/new"]:
        raise CheckFailed(
            "a list right after a put and a delete "
            + ("lacks the new object" if "list/new" not in now else "shows the deleted object")
        )
    return Good(f"{LISTED} objects in {len(sizes)} pages, in order; changes show at once")


async def deleting(scratch: Scratch) -> Good:
    """No reader sees a deleted object; absent keys are no error."""
    names = [f"del/{number}" for number in range(4)]
    for name in names:
        await scratch.put(name, b"x")
    await scratch.delete(*names[:3], "del/absent")
    for name in names[:3]:
        await _refused(scratch.get(name), ObjectNotFound, "a get of a deleted object")
        await _refused(scratch.head(name), ObjectNotFound, "a head of a deleted object")
    if await scratch.names("del/") != names[3:]:
        raise CheckFailed("a list after the delete is not what is left")
    await scratch.delete(*names[:3])
    await _holds(scratch, names[3], b"x")
    return Good("deleted objects are gone at once; absent keys are no error")


async def multipart(scratch: Scratch) -> Good:
    """An object that is stored in several parts is whole."""
    block = scratch.random.bytes(MIB)
    parts = [block] * (LARGE_BYTES // MIB)
    # Each MiB begins with its number, so that parts in a wrong order are seen.
    data = b"".join(
        number.to_bytes(8, "little") + part[8:] for number, part in enumerate(parts)
    ) + bytes(LARGE_BYTES % MIB)
    info = await scratch.put("large", *parts_of(data, MIB))
    head = await scratch.head("large")
    if head.size_bytes != LARGE_BYTES:
        raise CheckFailed(f"an object of {LARGE_BYTES} bytes was stored with {head.size_bytes}")
    if head.etag != info.etag:
        raise CheckFailed(f"put said etag {info.etag!r}, head says {head.etag!r}")
    for start in range(0, LARGE_BYTES, _READ_BYTES):
        expected = memoryview(data)[start : start + _READ_BYTES]
        if await scratch.get("large", start, _READ_BYTES) != expected:
            raise CheckFailed(f"the bytes from {start} of an object of {LARGE_BYTES} are wrong")
    await scratch.delete("large")
    return Good(f"an object of {LARGE_BYTES} bytes came back whole")


async def _holds(scratch: Scratch, name: str, data: bytes) -> None:
    stored = await scratch.get(name)
    if stored != data:
        raise CheckFailed(
            f"{name}: a get right after the put has {_shown(stored)}, not {_shown(data)}"
        )


async def _refused(call: Awaitable[Any], kind: type[StreamlogError], what: str) -> None:
    try:
        await call
    except kind:
        return
    except (DiskFull, StoreUnavailable):
        raise
    except StreamlogError as error:
        raise CheckFailed(
            f"{what} failed with {type(error).__name__}, not {kind.__name__}"
        ) from error
    raise CheckFailed(f"{what} succeeded; it must be refused with {kind.__name__}")


def _shown(data: bytes) -> str:
    return f"{len(data)} bytes ({data[:8].hex()}{'…' if len(data) > 8 else ''})"


def _sizes(objects: Sequence[Any]) -> str:
    return ", ".join(f"{info.size_bytes} bytes" for info in objects) or "nothing"


_STRONG = (
    "use a store that is strongly consistent (S3, MinIO, versitygw, GCS are), without a cache or a "
    "proxy in between"
)
_CONDITIONAL = (
    "use a store and version that honour If-None-Match and If-Match on PUT and on the completion "
    "of multipart uploads"
)

CHECKS: tuple[Check[Scratch], ...] = (
    Check("store.read_after_write", read_after_write, _STRONG),
    Check("store.overwrite", overwrite, _STRONG),
    Check("store.if_absent", if_absent, _CONDITIONAL),
    Check("store.if_match", if_match, _CONDITIONAL),
    Check("store.racers", racers, _CONDITIONAL),
    Check("store.range", ranges, "use a store that answers HTTP ranges as RFC 9110 says"),
    Check("store.list", listing, _STRONG),
    Check(
        "store.delete",
        deleting,
        "allow this user to delete, and check the bucket for versioning locks or retention",
    ),
    Check(
        "store.multipart",
        multipart,
        "allow multipart uploads, and check what the store or a proxy limits",
    ),
)
