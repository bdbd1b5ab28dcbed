"""Uploads that have time are sent at a rate, which may change meanwhile; asked of a real server."""

from __future__ import annotations

import asyncio
import math
import os
import time

import pytest

from streamlog.objectstore.interface import SendRate, upload_to
from streamlog.objectstore.opening import open_store
from streamlog.objectstore.s3.body import S3Body
from streamlog.objectstore.url import parse_store_url
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from tests.support.s3 import S3Tests

MIB = 1 << 20


@pytest.mark.parametrize("bytes_per_s", [256 * MIB, math.inf])
def test_an_upload_at_a_rate_stores_every_byte(s3: S3Tests, bytes_per_s: float) -> None:
    async def body() -> None:
        offload = ThreadOffload()
        store = await open_store(parse_store_url(s3.new_url()), offload, SystemClock())
        pieces = [os.urandom(4 * MIB) for _ in range(9)]
        pieces.append(b"the end")
        upload = upload_to(store, "a", 37 * MIB, SendRate(bytes_per_s))
        assert upload is not None
        for piece in pieces:
            await upload.write([piece])
        await upload.finish()
        assert bytes(await store.get("a")) == b"".join(pieces)
        await store.close()
        await offload.close()

    asyncio.run(body())


def test_a_body_takes_the_time_of_its_rate() -> None:
    data, began = os.urandom(4 * MIB), time.monotonic()
    body = S3Body([data], len(data), SendRate(32 * MIB))
    assert b"".join(iter(lambda: bytes(body.read()), b"")) == data
    assert time.monotonic() - began > 0.1


def test_what_is_left_of_a_body_goes_at_once_when_it_has_to() -> None:
    data, rate = os.urandom(4 * MIB), SendRate(MIB)
    body = S3Body([data], len(data), rate)
    first = bytes(body.read())
    assert 0 < len(first) < MIB
    rate.bytes_per_s = math.inf
    assert first + bytes(body.read()) == data


def test_a_body_that_is_sent_again_begins_anew() -> None:
    data = os.urandom(MIB)
    body = S3Body([data], len(data), SendRate(256 * MIB))
    body.read()
    body.seek(0)
    assert b"".join(iter(lambda: bytes(body.read()), b"")) == data
