"""S3ObjectStore: the ObjectStore contract over single S3 requests, whichever client sends them.

A write whose answer was lost is sent again with the same bytes. A conditional write may then be
refused because of its own first try. So each one has a put id, which the object keeps: one HEAD
tells a refused repetition from a lost race.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

from streamlog.errors import (
    Closed,
    Invalid,
    InvalidName,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    ValueConflict,
)
from streamlog.objectstore.errors import (
    Misplaced,
    StoreRefused,
    already_exists,
    changed,
    check_limit,
    check_range,
    not_found,
)
from streamlog.objectstore.interface import (
    FULL_RATE,
    Arrived,
    ListPage,
    ObjectInfo,
    ObjectUpload,
    SendRate,
    tell_pieces,
)
from streamlog.objectstore.keys import check_key, check_prefix
from streamlog.objectstore.s3.requests import (
    ALWAYS,
    Condition,
    Head,
    RangeNotSatisfiable,
    S3Requests,
)
from streamlog.objectstore.s3.retry import Tries
from streamlog.objectstore.s3.upload import S3Upload
from streamlog.objectstore.store_config import StoreConfig
from streamlog.objectstore.store_metrics import StoreMetrics
from streamlog.objectstore.url import S3Url
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random

DELETE_KEYS_MAX = 1000
OPEN_DEADLINE_MS = 5000


class S3ObjectStore:
    """Objects under a prefix of a bucket; other keys there are not listed.

    Modification times are the store's own, in whole seconds. After the start, refused credentials
    (rotated, or a changed policy), a missing bucket and unknown refusals make the store
    unavailable, because all of them may pass. Cancelling a call ends the wait; a request under way
    may still take effect.
    """

    def __init__(
        self,
        url: S3Url,
        requests: S3Requests,
        config: StoreConfig,
        clock: Clock,
        random: Random,
        metrics: StoreMetrics,
    ) -> None:
        self._url = url
        self._root = f"{url.prefix}/" if url.prefix else ""
        self._requests = requests
        self._config = config
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._is_closed = False

    async def check(self) -> None:
        """One LIST, which finds bad credentials, a missing bucket, a wrong region or endpoint.

        Errors: Unauthorized, Invalid, StoreUnavailable (sooner than other calls).
        """
        deadline_ms = min(self._config.request_deadline_ms, OPEN_DEADLINE_MS)
        config = dataclasses.replace(self._config, request_deadline_ms=deadline_ms)
        tries = Tries("list", config, self._clock, self._random, self._metrics, is_trusted=False)
        try:
            await tries.run(lambda: self._requests.list(self._root, None, 1))
        except (Misplaced, StoreRefused) as error:
            raise Invalid(error.message, **error.fields) from error

    @property
    def url(self) -> str:
        return str(self._url)

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        self._check_open()
        check_key(key)
        if not if_absent:
            try:
                return self._named(key, await self._put(key, parts, ALWAYS, self._tries("put")))
            except (ObjectNotFound, ValueConflict) as error:
                # NoSuchUpload, or an answer of a proxy: a PUT without a condition cannot fail
                # because of another object.
                raise StoreUnavailable(
                    f"{self._url} refused a put of {key} as if it had a condition: {error.message}",
                    operation="put",
                ) from error
        condition = Condition(is_absent=True, put_id=self._random.uuid().hex)
        return await self._put_if(key, parts, condition)

    def upload(self, key: str, about_bytes: int, rate: SendRate = FULL_RATE) -> ObjectUpload | None:
        self._check_open()
        check_key(key)
        parts = self._requests.multipart(self._root + key, about_bytes, self._tries, rate)
        if parts is None:
            return None
        return S3Upload(
            parts,
            partial(self.put, key),
            partial(self._completed, key),
            self._config.multipart_bytes_min,
            self._random.uuid().hex,
            is_large=about_bytes > self._config.multipart_bytes_min,
        )

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        self._check_open()
        check_key(key)
        return await self._put_if(key, parts, Condition(etag=etag, put_id=self._random.uuid().hex))

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        self._check_open()
        check_key(key)
        if start < 0 or (length is not None and length <= 0):
            return await self._nothing(key, start, length)
        end = None if length is None else start + length
        path = self._root + key
        try:
            return await self._tries("get").run(lambda: self._requests.get(path, start, end))
        except RangeNotSatisfiable:
            return await self._nothing(key, start, length)
        except ObjectNotFound:
            raise not_found(key) from None

    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        """A repeated request begins with the first piece that has not arrived."""
        self._check_open()
        check_key(key)
        length = sum(sizes)
        if start < 0 or length <= 0:
            tell_pieces(await self._nothing(key, start, length), sizes, arrived)
            return
        path, told = self._root + key, 0

        async def rest() -> None:
            first = told

            def tell(number: int, data: Buffer) -> bool:
                nonlocal told
                told = max(told, first + number + 1)
                return arrived(first + number, data)

            if first < len(sizes):
                at = start + sum(sizes[:first])
                await self._requests.get_pieces(path, at, sizes[first:], tell)

        try:
            await self._tries("get").run(rest)
        except RangeNotSatisfiable:
            if not told:
                await self._nothing(key, start, length)
            arrived(told, b"")
        except ObjectNotFound:
            raise not_found(key) from None

    async def head(self, key: str) -> ObjectInfo:
        self._check_open()
        check_key(key)
        path = self._root + key
        try:
            answer = await self._tries("head").run(lambda: self._requests.head(path))
        except ObjectNotFound:
            raise not_found(key) from None
        return self._named(key, answer.info)

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        """A page holds 1,000 objects at most. A token is the key behind which the page begins."""
        self._check_open()
        check_prefix(prefix)
        check_limit(limit)
        path = self._root + prefix
        after = None if token is None else self._root + token
        page = await self._tries("list").run(lambda: self._requests.list(path, after, limit))
        skip = len(self._root)
        objects = tuple(
            dataclasses.replace(info, key=info.key[skip:])
            for info in page.objects
            if _is_key(info.key[skip:])
        )
        return ListPage(objects, None if page.next_after is None else page.next_after[skip:])

    async def delete(self, keys: Sequence[str]) -> None:
        """Sends requests of 1,000 keys. After an error some are deleted; call it again."""
        self._check_open()
        for key in keys:
            check_key(key)
        paths = [self._root + key for key in keys]
        for at in range(0, len(paths), DELETE_KEYS_MAX):
            batch = paths[at : at + DELETE_KEYS_MAX]
            try:
                await self._tries("delete").run(partial(self._requests.delete, batch))
            except ObjectNotFound:
                continue

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._requests.close()

    def _tries(self, operation: str) -> Tries:
        return Tries(operation, self._config, self._clock, self._random, self._metrics)

    async def _put(
        self, key: str, parts: Sequence[Buffer], condition: Condition, tries: Tries
    ) -> ObjectInfo:
        path = self._root + key
        size_bytes = parts_size(parts)
        if size_bytes <= self._config.multipart_bytes_min:
            return await tries.run(lambda: self._requests.put(path, parts, size_bytes, condition))
        if condition.put_id is None:
            condition = dataclasses.replace(condition, put_id=self._random.uuid().hex)
        try:
            return await self._requests.put_large(path, parts, size_bytes, condition, self._tries)
        except OutcomeUnknown:
            tries.is_unknown = True
            info = await self._completed(key, condition.put_id)
            if info is None:
                raise
            return info

    async def _put_if(self, key: str, parts: Sequence[Buffer], condition: Condition) -> ObjectInfo:
        tries = self._tries("put")
        try:
            return self._named(key, await self._put(key, parts, condition, tries))
        except (ValueConflict, ObjectNotFound, StoreUnavailable, OutcomeUnknown) as error:
            if not tries.is_unknown:
                raise _refused(error, key, condition) from None
            return self._named(key, await self._resolve_outcome(key, condition, error))

    async def _resolve_outcome(
        self, key: str, condition: Condition, error: StreamlogError
    ) -> ObjectInfo:
        """Finds out whether a conditional PUT took effect: then the object has its put id.

        Errors: AlreadyExists, if another writer's object is there; else OutcomeUnknown.
        """
        stored = await self._found(key)
        if stored is not None and stored.put_id == condition.put_id:
            return stored.info
        if stored is not None and condition.is_absent:
            taken = already_exists(key)
            # Our object may have been there until another writer replaced it.
            taken.has_no_side_effects = False
            raise taken from error
        raise OutcomeUnknown(
            f"it is not known whether this call wrote {key}: {error.message}; read it again",
            operation="put",
        ) from error

    async def _completed(self, key: str, put_id: str | None) -> ObjectInfo | None:
        """The object, if that upload wrote it."""
        stored = await self._found(key)
        return stored.info if stored is not None and stored.put_id == put_id else None

    async def _found(self, key: str) -> Head | None:
        """None: the object is absent, or the store does not answer."""
        path = self._root + key
        try:
            return await self._tries("head").run(lambda: self._requests.head(path))
        except (ObjectNotFound, StoreUnavailable):
            return None

    async def _nothing(self, key: str, start: int, length: int | None) -> Buffer:
        """The answer to an empty range. Errors: Invalid for a range outside the object."""
        info = await self.head(key)
        if check_range(key, start, length, info.size_bytes):
            raise StoreUnavailable(f"{key} changed while it was read", operation="get")
        return b""

    def _named(self, key: str, info: ObjectInfo) -> ObjectInfo:
        return dataclasses.replace(info, key=key)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the object store was closed")


def _refused(error: StreamlogError, key: str, condition: Condition) -> StreamlogError:
    """The request's error as the contract defines it."""
    if isinstance(error, StoreUnavailable | OutcomeUnknown):
        return error
    if condition.is_absent:
        return already_exists(key)
    if isinstance(error, ObjectNotFound):
        return not_found(key)
    return changed(key, condition.etag or "", "")


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except InvalidName:
        return False
    return True
