"""The quick part: six requests that tell a store that cannot be trusted, before it is used."""

from __future__ import annotations

import logging

from streamlog.doctor.scratch import Scratch
from streamlog.errors import AlreadyExists, ObjectNotFound, StoreUntrusted
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random

log = logging.getLogger(__name__)

_NAME = "quick"


async def check_quickly(store: ObjectStore, clock: Clock, random: Random) -> None:
    """Conditional put, read-after-write, ranged get, delete.

    Errors: StoreUntrusted (field `check`); what the store itself raises, such as StoreUnavailable.
    """
    # A local store makes a folder for each slash, and keeps it.
    scratch = Scratch(store, clock, random, separator="-")
    try:
        await _check(scratch)
    except BaseException:
        left = await scratch.remove()
        if left:
            log.warning("%s was left in the store: %s", scratch.prefix, left)
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
    if await scratch.get(_NAME) != data:
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
