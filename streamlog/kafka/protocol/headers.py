"""Headers of requests and responses.

A request's frame (behind its size) begins

    0   api key          int16
    2   api version      int16
    4   correlation id   int32
    8   client id        int16 length (-1: null), UTF-8     the same in every version
    ..  tags             header version 2, that is, for a flexible version of the API

A response's frame begins with the correlation id (int32) and, in header version 1, tags.
"""

from __future__ import annotations

from struct import Struct, pack
from typing import NamedTuple

from streamlog.kafka.protocol.apis import APIS, Api, ApiKey
from streamlog.kafka.protocol.primitives import (
    ELEMENTS_MAX,
    OUT_OF_BYTES,
    Malformed,
    Wrong,
    malformed,
    plain_text_or_null,
    skip_tags,
    text_or_null,
)

_APIS: dict[int, Api] = {int(key): api for key, api in APIS.items()}
_FIXED = Struct(">hhih")
_FIXED_SIZE = _FIXED.size
_NAME = "RequestHeader"

SIZE_BYTES = 4
"""Width of the size before each frame, big-endian."""


class UnknownApi(Malformed):
    """The API or its version is not served. Fields: Malformed's, `api_key`, `api_version`."""


class RequestHeader(NamedTuple):
    api: Api
    version: int
    """Of the API; above `api.last` for ApiVersions alone, whose body must then not be read."""
    correlation_id: int
    client_id: str | None
    body_at: int
    """Where the request's body begins in the frame."""

    @property
    def is_beyond_us(self) -> bool:
        """An ApiVersions request in a version to come: answered in version 0 with error 35."""
        return self.version > self.api.last


def decode_request_header(frame: memoryview) -> RequestHeader:
    """The header of a frame, which is everything behind its size. Errors: Malformed, UnknownApi."""
    try:
        key, version, correlation_id, size = _FIXED.unpack_from(frame)
        api = _APIS.get(key)
        if api is None or not api.first <= version <= api.last:
            api = _beyond_us(key, version)
        client_id, at = text_or_null(frame, _FIXED_SIZE, size)
        if version >= api.flexible:
            tags = frame[at]
            at += 1
            if tags:
                at, _ = skip_tags(frame, at, tags, ELEMENTS_MAX)
    except Wrong as wrong:
        raise malformed(_NAME, str(wrong)) from wrong
    except OUT_OF_BYTES as cause:
        raise malformed(_NAME, "the frame ends before its header, or a string is wrong") from cause
    return RequestHeader(api, version, correlation_id, client_id, at)


def _beyond_us(key: int, version: int) -> Api:
    api = _APIS.get(key)
    if api is not None and api.key is ApiKey.API_VERSIONS and version > api.last:
        return api
    name = f"key {key}" if api is None else f"{api.name} version {version}"
    raise UnknownApi(
        f"this node does not serve Kafka's API {name}; ApiVersions lists what it serves",
        message_name=_NAME,
        api_key=key,
        api_version=version,
    )


def encode_request_header(
    api: Api, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    tags = b"\0" if version >= api.flexible else b""
    fixed = pack(">hhi", api.key, version, correlation_id)
    return fixed + plain_text_or_null(client_id) + tags


_SIZE_AND_ID = Struct(">ii")
_SIZE_ID_AND_TAGS = Struct(">iix")


def encode_response_header(api: Api, version: int, correlation_id: int, body_bytes: int) -> bytes:
    """The frame's size and the header of a response with a body of `body_bytes`."""
    if api.response_header(version) == 0:
        return _SIZE_AND_ID.pack(4 + body_bytes, correlation_id)
    return _SIZE_ID_AND_TAGS.pack(5 + body_bytes, correlation_id)


def decode_response_header(api: Api, version: int, frame: memoryview) -> tuple[int, int]:
    """The correlation id, and where the body begins. Errors: Malformed."""
    try:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if len(frame) < 4:
            raise Wrong("the frame ends before its correlation id")
        at = 4
        if api.response_header(version) == 1:
            at, _ = skip_tags(frame, 5, frame[4], ELEMENTS_MAX)
    except Wrong as wrong:
        raise malformed("ResponseHeader", str(wrong)) from wrong
    except OUT_OF_BYTES as cause:
        raise malformed("ResponseHeader", "the frame ends before its header") from cause
    return correlation_id, at
