"""What arrives at Kafka's listener: frames of requests. And responses, which tools read."""

from __future__ import annotations

import random

from streamlog.kafka.protocol.apis import (
    APIS,
    ApiKey,
    decode_request,
    decode_response,
    request_codec,
    response_codec,
)
from streamlog.kafka.protocol.headers import decode_request_header, encode_request_header
from streamlog.kafka.protocol.primitives import Malformed
from tests.fuzz.parser import Parser
from tests.kafka.shapes import every_shape, joined, random_message

SAMPLE_BYTES_MAX = 400


def _request(frame: bytes) -> object:
    """The message; what it is encoded to is read and encoded to the same bytes."""
    header = decode_request_header(memoryview(frame))
    if header.is_beyond_us:
        return header[:4]
    key, version = header.api.key, header.version
    message = decode_request(key, version, memoryview(frame), header.body_at)
    codec = request_codec(key)
    again = b"".join(codec.encode(message, version))
    read = decode_request(key, version, memoryview(again), 0)
    assert b"".join(codec.encode(read, version)) == again
    return repr(message)


def _response(data: bytes) -> object:
    """A byte for the API, one for the version, then the body."""
    apis = list(APIS.values())
    if len(data) < 2:
        return None
    api = apis[data[0] % len(apis)]
    version = api.first + data[1] % (api.last - api.first + 1)
    message = decode_response(api.key, version, memoryview(data), 2)
    codec = response_codec(api.key)
    again = b"".join(codec.encode(message, version))
    read = decode_response(api.key, version, memoryview(again), 0)
    assert b"".join(codec.encode(read, version)) == again
    return repr(message)


def _samples(is_request: bool) -> tuple[bytes, ...]:
    """One for each message in its first and its last version."""
    rng = random.Random(11)
    samples = []
    for shape in every_shape():
        if shape.is_request != is_request:
            continue
        for version in sorted({shape.first, shape.last}):
            api = APIS[ApiKey(shape.key)]
            body = b"x" * (SAMPLE_BYTES_MAX + 1)
            while len(body) > SAMPLE_BYTES_MAX:
                body = joined(shape, random_message(shape, version, rng), version)
            head = bytes((list(APIS).index(api.key), version - api.first))
            if is_request:
                head = encode_request_header(api, version, 7, "fuzz")
            samples.append(head + body)
    return tuple(samples)


PARSERS = (
    Parser("kafka_request", _request, _samples(is_request=True), (Malformed,)),
    Parser("kafka_response", _response, _samples(is_request=False), (Malformed,)),
)
