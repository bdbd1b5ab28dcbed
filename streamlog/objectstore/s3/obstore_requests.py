"""S3 requests through obstore (Rust): asynchronous by itself, with a seventh of boto3's CPU.

Credentials come from boto3's chain. The client repeats nothing, parts of a large object apart.
Its errors are text: status and code are read out of it, and what tells neither counts as a lost
answer. Cancelling a call ends its request.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Self, TypeVar

import obstore
from botocore import exceptions as boto
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from streamlog.errors import (
    Invalid,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    ValueConflict,
)
from streamlog.objectstore.interface import (
    FULL_RATE,
    Arrived,
    ObjectInfo,
    SendRate,
    tell_pieces,
)
from streamlog.objectstore.s3.errors import lost, no_credentials, refused, typed, where
from streamlog.objectstore.s3.requests import Condition, Head, Listed
from streamlog.objectstore.s3.retry import Tries
from streamlog.objectstore.store_config import StoreConfig
from streamlog.objectstore.store_metrics import StoreMetrics
from streamlog.objectstore.url import S3Url
from streamlog.runtime.buffers import Buffer, join
from streamlog.runtime.offload import Lane, Offload

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode
    from obstore.store import S3Config

T = TypeVar("T")

PUT_ID = "streamlog-put"
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_TEXT = re.compile(r"<Message>([^<]*)</Message>")
_REGION = re.compile(r"<Region>([a-z0-9-]+)</Region>")
_JOIN_INLINE_BYTES = 1 << 20


class ObstoreRequests:
    """Every method but `put_large` is one request."""

    def __init__(
        self,
        url: S3Url,
        store: S3Store,
        offload: Offload,
        config: StoreConfig,
        metrics: StoreMetrics,
    ) -> None:
        self._url = url
        self._store = store
        self._offload = offload
        self._config = config
        self._metrics = metrics

    @classmethod
    async def open(
        cls, url: S3Url, offload: Offload, config: StoreConfig, metrics: StoreMetrics
    ) -> Self:
        """Sends nothing to the store yet. Errors: Unauthorized, Invalid."""
        store = await offload.run(Lane.STORE, _store, url, config)
        return cls(url, store, offload, config, metrics)

    async def put(
        self, key: str, parts: Sequence[Buffer], size_bytes: int, condition: Condition
    ) -> ObjectInfo:
        if size_bytes <= _JOIN_INLINE_BYTES:
            data = join(parts) if parts else b""
        else:
            data = await self._offload.run(Lane.CPU, join, parts)
        return await self._put(key, [data], size_bytes, condition, is_multipart=False)

    async def put_large(
        self,
        key: str,
        parts: Sequence[Buffer],
        size_bytes: int,
        condition: Condition,
        tries: Callable[[str], Tries],
    ) -> ObjectInfo:
        """Sends parts; with a condition one piece (5 GiB at most), because the client has no other
        way.

        Parts that a failure leaves behind stay until the bucket's lifecycle rule removes them.
        """
        is_conditional = condition.is_absent or condition.etag is not None
        series = tries("put")
        try:
            return await series.run(
                lambda: self._put(
                    key, parts, size_bytes, condition, is_multipart=not is_conditional
                )
            )
        except (ObjectNotFound, ValueConflict) as error:
            if not series.is_unknown:
                raise
            # An earlier try, whose answer was lost, may have made the condition fail.
            raise OutcomeUnknown(f"a put of {key} gave no answer", operation="put") from error

    def multipart(
        self,
        key: str,
        about_bytes: int,
        tries: Callable[[str], Tries],
        rate: SendRate = FULL_RATE,
    ) -> None:
        """None: the client sends only whole objects."""
        return None

    async def _put(
        self,
        key: str,
        parts: Iterable[Buffer],
        size_bytes: int,
        condition: Condition,
        *,
        is_multipart: bool,
    ) -> ObjectInfo:
        mode: PutMode = "overwrite"
        if condition.is_absent:
            mode = "create"
        elif condition.etag is not None:
            mode = {"e_tag": condition.etag}

        async def request() -> ObjectInfo:
            result = await obstore.put_async(
                self._store,
                key,
                parts,
                mode=mode,
                attributes=None if condition.put_id is None else {PUT_ID: condition.put_id},
                use_multipart=is_multipart,
                chunk_size=self._config.part_bytes,
                max_concurrency=self._config.parts_in_flight_max,
            )
            # This client does not pass the answer's date on.
            return ObjectInfo(key, size_bytes, result["e_tag"] or "", _ms(datetime.now(UTC)))

        info = await self._run("put", key, request)
        self._metrics.sent_bytes.inc(size_bytes)
        return info

    async def get(self, key: str, start: int, end: int | None) -> Buffer:
        options: GetOptions = {}
        if end is not None:
            options["range"] = (start, end)
        elif start:
            options["range"] = {"offset": start}

        async def request() -> Buffer:
            result = await obstore.get_async(self._store, key, options=options)
            return memoryview(await result.bytes_async())

        data = await self._run("get", key, request)
        self._metrics.received_bytes.inc(len(data))
        return data

    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        """The client's own pieces end anywhere, so all pieces are passed on at the end."""
        data = await self.get(key, start, start + sum(sizes))
        await self._offload.run(Lane.GET, tell_pieces, data, sizes, arrived)

    async def head(self, key: str) -> Head:
        async def request() -> Head:
            result = await obstore.get_async(self._store, key, options={"head": True})
            return Head(_info(result.meta), result.attributes.get(PUT_ID))

        return await self._run("head", key, request)

    async def list(self, prefix: str, after: str | None, limit: int) -> Listed:
        """The client lists whole folders, so other keys in the prefix's folder are read, too."""
        folder, _, _ = prefix.rpartition("/")
        if after is not None and after < prefix:
            after = None

        async def request() -> Listed:
            objects: list[ObjectInfo] = []
            pages = obstore.list(
                self._store, folder or None, offset=after, chunk_size=min(limit + 1, 1000)
            )
            async for page in pages:
                for one in page:
                    if one["path"].startswith(prefix):
                        objects.append(_info(one))
                    elif objects:
                        return Listed(tuple(objects), None)
                    if len(objects) > limit:
                        return Listed(tuple(objects[:limit]), objects[limit - 1].key)
            return Listed(tuple(objects), None)

        return await self._run("list", "", request)

    async def delete(self, keys: Sequence[str]) -> None:
        async def request() -> None:
            await obstore.delete_async(self._store, [*keys])

        await self._run("delete", keys[0], request)

    async def close(self) -> None:
        """Nothing to close: the client's connections end with its memory."""

    async def _run(self, operation: str, key: str, request: Callable[[], Awaitable[T]]) -> T:
        async def translated() -> T:
            try:
                return await request()
            except (BaseError, OSError) as error:
                raise self._typed(error, operation, key) from error

        return await self._metrics.measured(operation, translated())

    def _typed(self, error: Exception, operation: str, key: str) -> StreamlogError:
        text = str(error)
        code, region = _CODE.search(text), _REGION.search(text)
        status = _STATUS.search(text)
        message = _TEXT.search(text)
        first = text.split("\n", 1)[0]
        if status is not None:
            answer = {
                "Error": {"Code": code[1] if code else "", "Region": region[1] if region else ""},
                "ResponseMetadata": {"HTTPStatusCode": int(status[1])},
            }
            shown = f"{code[1]}: {message[1]}" if code and message else first[:300]
            return refused(answer, shown, operation, key, self._url)
        if isinstance(error, AlreadyExistsError | PreconditionError):
            return ValueConflict(f"a condition of the {operation} of {key} does not hold")
        if "kind: Connect" in text:
            return StoreUnavailable(
                f"{where(self._url)} cannot be reached; is it up, and is endpoint= right?",
                operation=operation,
            )
        return lost(operation, self._url, first[:300])


def _store(url: S3Url, config: StoreConfig) -> S3Store:
    settings: S3Config = {"virtual_hosted_style_request": not _is_path_style(url)}
    settings["unsigned_payload"] = True
    if config.checksum != "none":
        settings["checksum_algorithm"] = "CRC64NVME"
    if url.endpoint is not None:
        settings["endpoint"] = url.endpoint
    if url.region is not None:
        settings["region"] = url.region
    try:
        credentials = Boto3CredentialProvider()
    except boto.BotoCoreError as error:
        raise typed(error, "open", "", url) from error
    except ValueError as error:
        raise no_credentials(url, "boto3 found none") from error
    deadline = timedelta(milliseconds=config.request_deadline_ms)
    try:
        return S3Store(
            url.bucket,
            config=settings,
            credential_provider=credentials,
            client_options={
                "allow_http": url.endpoint is not None and url.endpoint.startswith("http://"),
                "connect_timeout": timedelta(milliseconds=config.connect_timeout_ms),
                "read_timeout": timedelta(milliseconds=config.read_timeout_ms),
                "timeout": deadline,
                "pool_max_idle_per_host": str(
                    config.puts_in_flight_max + config.gets_in_flight_max
                ),
            },
            retry_config={"max_retries": 0, "retry_timeout": deadline},
        )
    except (BaseError, ValueError) as error:
        raise Invalid(f"{url} cannot be opened: {error}") from error


def _is_path_style(url: S3Url) -> bool:
    """Without an endpoint of its own a bucket is found by its host name."""
    return url.path_style or url.endpoint is not None


def _info(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["e_tag"] or "", _ms(meta["last_modified"]))


def _ms(when: datetime) -> int:
    """Whole seconds, as a HEAD tells them."""
    return int(when.timestamp()) * 1000
