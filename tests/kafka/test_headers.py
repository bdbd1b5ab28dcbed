"""Headers of requests and responses, and the table of APIs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streamlog.kafka.protocol.apis import APIS, Api, ApiKey
from streamlog.kafka.protocol.headers import (
    UnknownApi,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from streamlog.kafka.protocol.primitives import Malformed
from tests.kafka.shapes import every_shape

METADATA = APIS[ApiKey.METADATA]
API_VERSIONS = APIS[ApiKey.API_VERSIONS]
each_api = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)


@each_api
@pytest.mark.parametrize("client_id", [None, "", "größe"])
def test_a_request_header_comes_back(api: Api, client_id: str | None) -> None:
    for version in range(api.first, api.last + 1):
        raw = encode_request_header(api, version, -7, client_id)
        header = decode_request_header(memoryview(raw + b"body"))
        assert header == (api, version, -7, client_id, len(raw))
        assert not header.is_beyond_us
        assert api.request_header(version) == (2 if version >= api.flexible else 1)


def test_bytes_of_request_headers() -> None:
    plain = encode_request_header(METADATA, 8, 1, "rdkafka")
    assert plain == b"\0\3\0\x08\0\0\0\1\0\7rdkafka"
    assert encode_request_header(METADATA, 9, 1, None) == b"\0\3\0\x09\0\0\0\1\xff\xff\0"


def test_unknown_tags_of_a_request_header_are_skipped() -> None:
    raw = b"\0\3\0\x0c\0\0\0\1\0\1x" + b"\x02\x05\x01z\x80\x01\x00" + b"body"
    assert decode_request_header(memoryview(raw)).body_at == len(raw) - len(b"body")


@each_api
def test_a_request_header_cut_at_any_byte_is_malformed(api: Api) -> None:
    raw = encode_request_header(api, api.last, 1, "client")
    for end in range(len(raw)):
        with pytest.raises(Malformed):
            decode_request_header(memoryview(raw[:end]))


@pytest.mark.parametrize(
    "raw",
    [
        b"\0\3\0\x08\0\0\0\1\0\2\xc3\x28",
        b"\0\3\0\x08\0\0\0\1\xff\xfe",
        b"\0\3\0\x08\0\0\0\1\x7f\xffab",
        b"\0\3\0\x09\0\0\0\1\xff\xff\x05",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["not-utf-8", "length-of-minus-two", "longer-than-the-frame", "no-tags", "http"],
)
def test_wrong_headers_are_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed):
        decode_request_header(memoryview(raw))


@pytest.mark.parametrize(("key", "version"), [(99, 0), (-1, 0), (3, 14), (3, -1), (0, 2), (18, -1)])
def test_an_api_or_version_that_is_not_served_is_named(key: int, version: int) -> None:
    raw = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True) + bytes(6)
    with pytest.raises(UnknownApi, match="does not serve") as raised:
        decode_request_header(memoryview(raw))
    assert raised.value.fields == {
        "api_key": key,
        "api_version": version,
        "message_name": "RequestHeader",
    }


def test_api_versions_beyond_ours_has_a_header_all_the_same() -> None:
    raw = b"\0\x12\0\x63\0\0\0\5\0\2me\0" + b"who knows"
    header = decode_request_header(memoryview(raw))
    assert header.is_beyond_us
    assert (header.api, header.version, header.correlation_id) == (API_VERSIONS, 99, 5)


@each_api
def test_a_response_header_comes_back(api: Api) -> None:
    for version in range(api.first, api.last + 1):
        raw = encode_response_header(api, version, -3, 10)
        assert int.from_bytes(raw[:4], "big") == len(raw) - 4 + 10
        frame = memoryview(raw[4:] + bytes(10))
        assert decode_response_header(api, version, frame) == (-3, len(raw) - 4)
        for end in range(len(raw) - 4):
            with pytest.raises(Malformed):
                decode_response_header(api, version, frame[:end])


def test_api_versions_are_answered_without_tags_in_the_header() -> None:
    for version in range(5):
        assert encode_response_header(API_VERSIONS, version, 1, 0) == b"\0\0\0\4\0\0\0\1"
    assert encode_response_header(METADATA, 9, 1, 0) == b"\0\0\0\5\0\0\0\1\0"


def test_produce_alone_is_advertised_below_what_is_served() -> None:
    below = {api.key for api in APIS.values() if api.advertised_first != api.first}
    assert below == {ApiKey.PRODUCE}
    assert APIS[ApiKey.PRODUCE].advertised_first == 0


def test_every_api_has_a_request_and_a_response() -> None:
    names = {shape.name for shape in every_shape()}
    assert names == {
        f"{api.name}{kind}" for api in APIS.values() for kind in ("Request", "Response")
    }


def test_messages_are_imported_on_first_use() -> None:
    program = """
import sys
from streamlog.kafka.protocol import apis, errors, headers
def loaded():
    return {name.rpartition(".")[2] for name in sys.modules if ".kafka.messages." in name}
assert loaded() == set(), loaded()
apis.request_codec(apis.ApiKey.METADATA)
assert loaded() == {"metadata_request"}, loaded()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
