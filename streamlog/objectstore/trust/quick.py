"""The quick check: six requests that find a store that cannot be trusted, before it is used."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from streamlog.errors import AlreadyExists, ObjectNotFound, StoreUntrusted, Unavailable
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.trust.scratch import Scratch
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random

log = logging.getLogger(__name__)

_NAME = "quick"
REMOVE_S = 5.0
"""How long a failed check tries to remove what it wrote: the store may be away."""


async def check_quickly(store: ObjectStore, clock: Clock, random: Random) -> None:
    """Conditional put, read-after-write, ranged get, delete.

    A check that fails is repeated once, with another key, because a store that is just going down
    or coming up may look like one that cannot be trusted. Errors: StoreUntrusted (field `check`);
    errors of the store, such as StoreUnavailable.
    """
    try:
        await _check_once(store, clock, random)
    except StoreUntrusted as error:
        log.warning("a check of the store failed, and is made again", extra={"reason": str(error)})
        await _check_once(store, clock, random)


async def _check_once(store: ObjectStore, clock: Clock, random: Random) -> None:
    # A local store makes a folder for each slash, and keeps it.
    scratch = Scratch(store, clock, random, separator="-")
    try:
        await _check(scratch)
    except asyncio.CancelledError:
        # The node ends, and must not wait for a store that may not answer.
        log.warning("%s may be left in the store", scratch.prefix)
        raise
    except BaseException as error:
        left = str(error)
        with suppress(TimeoutError):
            async with asyncio.timeout(REMOVE_S):
                left = await scratch.remove()
        if left:
            # An unavailable store fails every try, and most likely nothing was written.
            level = logging.INFO if isinstance(error, Unavailable) else logging.WARNING
            log.log(level, "%s may be left in the store: %s", scratch.prefix, left)
        raise


async def _check(scratch: Scratch) -> None:
    data = scratch.random.bytes(1000)
    await scratch.put(_NAME, data, if_absent=True)
    try:
        await scratch.put(_NAME, b"second", if_absent=True)
    except AlreadyExists:
        pass
    else:
        raise _untrusted("store.if_absent", "a put with If-None-Match replaced an object")
    try:
        stored = await scratch.get(_NAME)
    except ObjectNotFound:
        raise _untrusted(
            "store.read_after_write", "a get right after a put found nothing"
        ) from None
    if stored != data:
        raise _untrusted("store.read_after_write", "a get right after a put had other bytes")
    if await scratch.get(_NAME, 989, 10) != data[989:999]:
        raise _untrusted("store.range", "a ranged get had other bytes")
    await scratch.delete(_NAME)
    try:
        await scratch.head(_NAME)
    except ObjectNotFound:
        return
    raise _untrusted("store.delete", "a deleted object is still there")


def _untrusted(check: str, what: str) -> StoreUntrusted:
    return StoreUntrusted(
        f"the object store cannot be trusted with data: {what} (check {check}); "
        "`streamlog doctor` with the same options says more",
        check=check,
    )
