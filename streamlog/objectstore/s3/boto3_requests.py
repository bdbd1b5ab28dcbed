"""S3 requests through boto3: blocking calls on the lanes STORE and GET.

The client signs headers and not payloads, and repeats nothing: checksums are the setting's, and
repetition is S3ObjectStore's. A cancelled call's thread goes on to the request's end.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from typing import Any, Self, TypeVar, TypeVarTuple

import boto3
import botocore
import botocore.session
from botocore import exceptions as boto
from botocore.config import Config
from botocore.parsers import ResponseParserError
from botocore.utils import parse_timestamp
from urllib3.exceptions import HTTPError

from streamlog.codec.crc import crc32c_parts
from streamlog.errors import Internal, Invalid
from streamlog.objectstore.interface import (
    FULL_RATE,
    Arrived,
    ObjectInfo,
    SendRate,
)
from streamlog.objectstore.s3.body import S3Body
from streamlog.objectstore.s3.errors import lost, typed
from streamlog.objectstore.s3.multipart import MultipartUpload
from streamlog.objectstore.s3.requests import Condition, Head, Listed
from streamlog.objectstore.s3.retry import Tries
from streamlog.objectstore.store_config import StoreConfig
from streamlog.objectstore.store_metrics import StoreMetrics
from streamlog.objectstore.url import S3Url
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.offload import Lane, Offload

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Response = Mapping[str, Any]

ABORT_GRACE_S = 2.0
PUT_ID = "streamlog-put"
_SKIP_BYTES = 1 << 20
_USER_AGENT = f"streamlog Boto3/{boto3.__version__} Botocore/{botocore.__version__}"
_FAILURES = (
    boto.BotoCoreError,
    boto.ClientError,
    # botocore does not translate these: an answer that is not XML, and TLS that breaks in a body.
    ResponseParserError,
    HTTPError,
    OSError,
)
_ANSWERS: Mapping[str, tuple[str, str]] = {
    "put_object": ("ETag", "put"),
    "get_object": ("ETag", "get"),
    "head_object": ("ETag", "head"),
    "list_objects_v2": ("IsTruncated", "list"),
    "create_multipart_upload": ("UploadId", "create"),
    "upload_part": ("ETag", "part"),
    "complete_multipart_upload": ("ETag", "complete"),
}
"""By method: a field that every answer has, and the operation."""
_CHECKSUMS: Mapping[str, str] = {"crc32c": "ChecksumCRC32C", "md5": "ContentMD5"}


class Boto3Requests:
    """Every method is one request on one connection of the pool."""

    def __init__(
        self,
        url: S3Url,
        client: Any,
        offload: Offload,
        config: StoreConfig,
        metrics: StoreMetrics,
    ) -> None:
        self._url = url
        self._client = client
        self._offload = offload
        self._config = config
        self._metrics = metrics
        self._aborts: set[asyncio.Task[None]] = set()
        self._background = Background("s3", _nobody)

    @classmethod
    async def open(
        cls, url: S3Url, offload: Offload, config: StoreConfig, metrics: StoreMetrics
    ) -> Self:
        """Sends nothing yet. Errors: Invalid for an endpoint or a profile that cannot be."""
        client = await offload.run(Lane.STORE, _client, url, config)
        return cls(url, client, offload, config, metrics)

    async def put(
        self, key: str, parts: Sequence[Buffer], size_bytes: int, condition: Condition
    ) -> ObjectInfo:
        response = await self._run(
            Lane.STORE, "put", key, self._put, key, parts, size_bytes, condition
        )
        self._metrics.sent_bytes.inc(size_bytes)
        return _put_info(key, size_bytes, response)

    async def put_large(
        self,
        key: str,
        parts: Sequence[Buffer],
        size_bytes: int,
        condition: Condition,
        tries: Callable[[str], Tries],
    ) -> ObjectInfo:
        upload = self.multipart(key, size_bytes, tries)
        return await upload.run(parts, size_bytes, condition)

    def multipart(
        self,
        key: str,
        about_bytes: int,
        tries: Callable[[str], Tries],
        rate: SendRate = FULL_RATE,
    ) -> MultipartUpload:
        return MultipartUpload(
            self, key, about_bytes, self._config, tries, self._background, self._spawn_abort, rate
        )

    async def get(self, key: str, start: int, end: int | None) -> Buffer:
        data = await self._run(Lane.GET, "get", key, self._get, key, start, end)
        self._metrics.received_bytes.inc(len(data))
        return data

    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        await self._run(Lane.GET, "get", key, self._get_pieces, key, start, sizes, arrived)

    async def head(self, key: str) -> Head:
        response = await self._run(Lane.STORE, "head", key, self._call, "head_object", {"Key": key})
        info = ObjectInfo(
            key, response["ContentLength"], response["ETag"], _ms(response["LastModified"])
        )
        return Head(info, response.get("Metadata", {}).get(PUT_ID))

    async def list(self, prefix: str, after: str | None, limit: int) -> Listed:
        # Asked for one key, MinIO returns an object named as the prefix, and says that it is all.
        arguments: dict[str, Any] = {"Prefix": prefix, "MaxKeys": min(max(limit, 2), 1000)}
        if after is not None:
            arguments["StartAfter"] = after
        while True:
            response = await self._run(
                Lane.STORE, "list", "", self._call, "list_objects_v2", arguments
            )
            token = response.get("NextContinuationToken")
            if response.get("Contents") or not response["IsTruncated"] or token is None:
                break
            # Behind many deleted versions a page may be empty without being the last.
            arguments["ContinuationToken"] = token
        objects = tuple(
            ObjectInfo(one["Key"], one["Size"], one["ETag"], _ms(one["LastModified"]))
            for one in response.get("Contents", ())
        )
        is_cut = response["IsTruncated"] or len(objects) > limit
        return Listed(objects[:limit], objects[:limit][-1].key if is_cut and objects else None)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._run(Lane.STORE, "delete", keys[0], self._delete, keys)

    async def close(self) -> None:
        """Aborts under way get two seconds."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=ABORT_GRACE_S)
        await self._background.close()
        await self._offload.run(Lane.STORE, self._client.close)

    # the steps of a multipart upload

    async def create(self, key: str, put_id: str | None) -> str:
        """The upload's id."""
        arguments: dict[str, Any] = {"Key": key}
        if put_id is not None:
            arguments["Metadata"] = {PUT_ID: put_id}
        if self._config.checksum == "crc32c":
            arguments["ChecksumAlgorithm"] = "CRC32C"
        response = await self._run(
            Lane.STORE, "create", key, self._call, "create_multipart_upload", arguments
        )
        return str(response["UploadId"])

    async def part(self, key: str, upload_id: str, number: int, body: S3Body) -> dict[str, Any]:
        """The part as `complete` needs it."""
        size_bytes = len(body)
        answer = await self._run(Lane.STORE, "part", key, self._part, key, upload_id, number, body)
        self._metrics.sent_bytes.inc(size_bytes)
        return answer

    async def complete(
        self,
        key: str,
        upload_id: str,
        parts: Sequence[Mapping[str, Any]],
        size_bytes: int,
        condition: Condition,
    ) -> ObjectInfo:
        arguments = {
            "Key": key,
            "UploadId": upload_id,
            "MultipartUpload": {"Parts": list(parts)},
            **_conditions(condition),
        }
        response = await self._run(
            Lane.STORE, "complete", key, self._call, "complete_multipart_upload", arguments
        )
        return _put_info(key, size_bytes, response)

    async def abort(self, key: str, upload_id: str) -> None:
        arguments = {"Key": key, "UploadId": upload_id}
        await self._run(Lane.STORE, "abort", key, self._call, "abort_multipart_upload", arguments)

    def _spawn_abort(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._background.spawn(work, name="abort")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    # on the lanes' threads

    async def _run(
        self, lane: Lane, operation: str, key: str, fn: Callable[[*Ts], T], *args: *Ts
    ) -> T:
        def blocking() -> T:
            try:
                return fn(*args)
            except _FAILURES as error:
                raise typed(error, operation, key, self._url) from error

        return await self._metrics.measured(operation, self._offload.run(lane, blocking))

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Response:
        response: Response = getattr(self._client, name)(Bucket=self._url.bucket, **arguments)
        wanted, operation = _ANSWERS.get(name, ("", ""))
        if wanted and wanted not in response:
            # Such as a proxy's page with status 200.
            if "Body" in response:
                response["Body"].close()
            raise lost(operation, self._url, f"the answer has no {wanted}")
        return response

    def _put(
        self, key: str, parts: Sequence[Buffer], size_bytes: int, condition: Condition
    ) -> Response:
        arguments: dict[str, Any] = {"Key": key, "Body": S3Body(parts, size_bytes)}
        arguments |= self._checksum(parts) | _conditions(condition)
        if condition.put_id is not None:
            arguments["Metadata"] = {PUT_ID: condition.put_id}
        return self._call("put_object", arguments)

    def _part(self, key: str, upload_id: str, number: int, body: S3Body) -> dict[str, Any]:
        checksum = self._checksum(body.parts)
        response = self._call(
            "upload_part",
            {
                "Key": key,
                "UploadId": upload_id,
                "PartNumber": number,
                "Body": body,
                **checksum,
            },
        )
        checksum.pop("ContentMD5", None)
        return {"PartNumber": number, "ETag": response["ETag"], **checksum}

    def _get(self, key: str, start: int, end: int | None) -> Buffer:
        arguments: dict[str, Any] = {"Key": key}
        if start or end is not None:
            arguments["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        response = self._call("get_object", arguments)
        # closing: as a context manager of its own a body is another object, with other errors.
        with closing(response["Body"]) as body:
            data: bytes = body.read()
        if "Range" in arguments and response["ResponseMetadata"]["HTTPStatusCode"] == 200:
            # A store that ignores ranges sends the whole object.
            return memoryview(data)[start:end]
        return data

    def _get_pieces(self, key: str, start: int, sizes: Sequence[int], arrived: Arrived) -> None:
        wanted = f"bytes={start}-{start + sum(sizes) - 1}"
        response = self._call("get_object", {"Key": key, "Range": wanted})
        with closing(response["Body"]) as body:
            if response["ResponseMetadata"]["HTTPStatusCode"] == 200:
                _skip(body, start)
            for number, size in enumerate(sizes):
                data: bytes = body.read(size)
                if len(data) < size:
                    # The object's end, or an error if more was to come.
                    body.read(1)
                self._metrics.received_bytes.inc(len(data))
                if not arrived(number, data) or len(data) < size:
                    return

    def _delete(self, keys: Sequence[str]) -> None:
        if len(keys) == 1:
            self._call("delete_object", {"Key": keys[0]})
            return
        objects = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        response = self._call("delete_objects", {"Delete": objects})
        for error in response.get("Errors", ()):
            if error.get("Code") == "NoSuchKey":
                continue
            # The error as a delete of this key alone would get it; the next try has the other keys.
            answer = {"Error": error, "ResponseMetadata": {}}
            if error.get("Code") == "InternalError":
                answer["ResponseMetadata"] = {"HTTPStatusCode": 500}
            raise boto.ClientError(answer, "DeleteObjects")

    def _checksum(self, parts: Sequence[Buffer]) -> dict[str, Any]:
        match self._config.checksum:
            case "crc32c":
                digest = crc32c_parts(tuple(parts)).to_bytes(4, "big")
            case "md5":
                md5 = hashlib.md5(usedforsecurity=False)
                for part in parts:
                    md5.update(part)
                digest = md5.digest()
            case "none":
                return {}
            case other:
                raise Internal(f"there is no checksum {other!r}")
        return {_CHECKSUMS[self._config.checksum]: base64.b64encode(digest).decode()}


def _nobody(error: BaseException) -> None:
    """An abort that fails by a bug is logged, and stops nothing."""


def _client(url: S3Url, config: StoreConfig) -> Any:
    session = botocore.session.get_session()
    # Parsing the date of every GET, which is not used, would take a tenth of a request's CPU.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
    try:
        client = boto3.session.Session(botocore_session=session).client(
            "s3",
            endpoint_url=url.endpoint,
            region_name=url.region,
            config=Config(
                s3={
                    "addressing_style": "path" if url.path_style else "auto",
                    "payload_signing_enabled": False,
                },
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                retries={"total_max_attempts": 1},
                connect_timeout=config.connect_timeout_ms / 1000,
                read_timeout=config.read_timeout_ms / 1000,
                max_pool_connections=config.puts_in_flight_max + config.gets_in_flight_max,
                # A fixed one: boto3 would put its own together anew, twice for each request.
                user_agent=_USER_AGENT,
            ),
        )
    except (boto.BotoCoreError, ValueError) as error:
        raise Invalid(f"{url} cannot be opened: {error}") from error
    client.meta.events.register("before-send.s3", _without_expect)
    return client


def _skip(body: Any, size_bytes: int) -> None:
    while size_bytes > 0:
        skipped = len(body.read(min(size_bytes, _SKIP_BYTES)))
        if not skipped:
            return
        size_bytes -= skipped


def _without_expect(request: Any, **_: Any) -> None:
    """No `Expect: 100-continue`: it costs every PUT a round trip."""
    if "Expect" in request.headers:
        del request.headers["Expect"]


def _conditions(condition: Condition) -> dict[str, str]:
    if condition.is_absent:
        return {"IfNoneMatch": "*"}
    return {} if condition.etag is None else {"IfMatch": condition.etag}


def _put_info(key: str, size_bytes: int, response: Response) -> ObjectInfo:
    date = response["ResponseMetadata"]["HTTPHeaders"].get("date")
    return ObjectInfo(key, size_bytes, response["ETag"], _ms(date) if date else 0)


def _ms(when: str) -> int:
    """Whole seconds, as a HEAD tells them."""
    return int(parse_timestamp(when).timestamp()) * 1000
