"""A store that cannot be opened says what to do; asked of a real server."""

from __future__ import annotations

import asyncio
import io
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from botocore import exceptions as boto
from prometheus_client import CollectorRegistry
from urllib3.exceptions import SSLError

import streamlog
from streamlog.demo.ports import free_port
from streamlog.errors import (
    Internal,
    Invalid,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    Unauthorized,
    ValueConflict,
)
from streamlog.objectstore.errors import Misplaced, StoreRefused
from streamlog.objectstore.opening import open_store
from streamlog.objectstore.s3.boto3_requests import Boto3Requests
from streamlog.objectstore.s3.errors import typed
from streamlog.objectstore.s3.store import S3ObjectStore
from streamlog.objectstore.store_config import StoreConfig
from streamlog.objectstore.store_metrics import StoreMetrics
from streamlog.objectstore.url import S3Url, parse_store_url
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from tests.support.command import environment
from tests.support.s3 import BUCKET, S3Tests

CLIENTS = ("boto3", "obstore")
PATIENT = StoreConfig(request_deadline_ms=10_000)
"""For refusals that no deadline awaits."""
QUICK = StoreConfig(request_deadline_ms=1000)


@pytest.mark.parametrize(
    ("error", "write", "read"),
    [
        (boto.ConnectTimeoutError(endpoint_url="x"), StoreUnavailable, StoreUnavailable),
        (boto.EndpointConnectionError(endpoint_url="x"), StoreUnavailable, StoreUnavailable),
        (boto.ReadTimeoutError(endpoint_url="x"), OutcomeUnknown, StoreUnavailable),
        (boto.ConnectionClosedError(endpoint_url="x"), OutcomeUnknown, StoreUnavailable),
        (boto.SSLError(endpoint_url="x", error="x"), OutcomeUnknown, StoreUnavailable),
        (
            boto.CredentialRetrievalError(provider="iam-role", error_msg="x"),
            StoreUnavailable,
            StoreUnavailable,
        ),
        (boto.ParamValidationError(report="x"), Internal, Internal),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_the_possible_effects_of_a_failed_request(
    error: Exception, write: type[StreamlogError], read: type[StreamlogError]
) -> None:
    url = S3Url("bucket")
    assert type(typed(error, "put", "a", url)) is write
    assert type(typed(error, "get", "a", url)) is read


@pytest.mark.parametrize(
    ("code", "status", "write"),
    [
        ("SlowDown", 503, StoreUnavailable),
        ("", 503, StoreUnavailable),
        ("TooManyRequests", 429, StoreUnavailable),
        ("InternalError", 500, OutcomeUnknown),
        ("", 502, OutcomeUnknown),
        ("ConditionalRequestConflict", 409, StoreUnavailable),
        ("BadDigest", 400, StoreUnavailable),
        ("RequestTimeTooSkewed", 403, StoreUnavailable),
        ("PreconditionFailed", 412, ValueConflict),
        ("NoSuchKey", 404, ObjectNotFound),
        ("NoSuchBucket", 404, Misplaced),
        ("PermanentRedirect", 301, Misplaced),
        ("", 408, StoreUnavailable),
        ("XMinioAdminBucketQuotaExceeded", 400, StoreUnavailable),
        ("AccessDenied", 403, Unauthorized),
        ("ExpiredToken", 400, Unauthorized),
        ("EntityTooLarge", 400, Invalid),
        ("NotImplemented", 501, Invalid),
        ("", 413, Invalid),
        ("IncompleteBody", 400, StoreUnavailable),
        ("XAmzContentSHA256Mismatch", 400, StoreUnavailable),
        ("XAmzContentChecksumMismatch", 400, StoreUnavailable),
        ("KMS.ThrottlingException", 400, StoreUnavailable),
        ("ClientDisconnected", 499, OutcomeUnknown),
        ("XMinioStorageFull", 507, OutcomeUnknown),
        ("QuotaExceeded", 403, Unauthorized),
        ("KMS.DisabledException", 400, StoreRefused),
        ("InvalidRequest", 400, StoreRefused),
        ("InvalidBucketState", 409, StoreRefused),
        ("InvalidPart", 400, StoreRefused),
        ("SomethingNew", 418, StoreRefused),
    ],
)
def test_the_meaning_of_each_refusal(code: str, status: int, write: type[StreamlogError]) -> None:
    answer: dict[str, Any] = {
        "Error": {"Code": code, "Message": "said"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    error = typed(boto.ClientError(answer, "PutObject"), "put", "a", S3Url("bucket"))
    assert type(error) is write


class Refusing:
    """A client of boto3's shape whose first requests meet refusals, and then succeed."""

    def __init__(self, *codes: tuple[str, int]) -> None:
        self.codes = list(codes)
        self.calls = 0

    def put_object(self, **_: object) -> dict[str, object]:
        return self._answer({"ETag": "x"})

    def get_object(self, **_: object) -> dict[str, object]:
        return self._answer({"ETag": "x", "Body": io.BytesIO(b"abc")})

    def list_objects_v2(self, **_: object) -> dict[str, object]:
        return self._answer({"IsTruncated": False})

    def close(self) -> None:
        pass

    def _answer(self, answer: dict[str, object]) -> dict[str, object]:
        self.calls += 1
        if self.codes:
            code, status = self.codes.pop(0)
            refusal: Any = {
                "Error": {"Code": code, "Message": "said"},
                "ResponseMetadata": {"HTTPStatusCode": status},
            }
            raise boto.ClientError(refusal, "Operation")
        return {**answer, "ResponseMetadata": {"HTTPHeaders": {}}}


ODD = [("InvalidRequest", 400), ("KMS.DisabledException", 400), ("AccessDenied", 403)]


def asked(
    client: Refusing,
    ask: Callable[[S3ObjectStore], Awaitable[object]],
    deadline_ms: int = 20_000,
) -> object:
    async def main() -> object:
        offload = ThreadOffload()
        metrics = StoreMetrics(CollectorRegistry(), SystemClock())
        config = StoreConfig(
            request_deadline_ms=deadline_ms, retry_backoff_ms=1, retry_backoff_ms_max=2
        )
        url = S3Url("bucket")
        requests = Boto3Requests(url, client, offload, config, metrics)
        store = S3ObjectStore(url, requests, config, SystemClock(), SeededRandom(1), metrics)
        try:
            return await ask(store)
        finally:
            await store.close()
            await offload.close()

    return asyncio.run(asyncio.wait_for(main(), 30))


def test_unknown_refusals_are_waited_out_within_the_deadline() -> None:
    client = Refusing(*ODD)
    asked(client, lambda store: store.put("data/a", (b"x",)))
    assert client.calls == 4
    assert asked(Refusing(*ODD), lambda store: store.get("data/a")) == b"abc"
    with pytest.raises(StoreUnavailable, match="InvalidRequest"):
        asked(Refusing(*ODD[:1] * 10_000), lambda store: store.put("data/a", (b"x",)), 300)
    for code in ("NoSuchKey", "NoSuchUpload"):
        with pytest.raises(StoreUnavailable, match="as if it had a condition"):
            asked(Refusing((code, 404)), lambda store: store.put("data/a", (b"x",)), 300)


def test_an_unknown_refusal_at_the_opening_is_raised_at_once() -> None:
    client = Refusing(*ODD)
    with pytest.raises(Invalid, match="InvalidRequest"):
        asked(client, lambda store: store.check())
    assert client.calls == 1


def test_tls_that_breaks_within_a_body_is_a_failed_read() -> None:
    """botocore lets urllib3's own error through there."""

    class Body:
        is_closed = False

        def read(self) -> bytes:
            raise SSLError("decryption failed or bad record mac")

        def close(self) -> None:
            self.is_closed = True

    class Client:
        body = Body()

        def get_object(self, **_: object) -> dict[str, object]:
            return {"ETag": "x", "Body": self.body}

    async def main() -> None:
        offload, client = ThreadOffload(), Client()
        metrics = StoreMetrics(CollectorRegistry(), SystemClock())
        requests = Boto3Requests(S3Url("bucket"), client, offload, QUICK, metrics)
        with pytest.raises(StoreUnavailable, match="bad record mac"):
            await requests.get("a", 0, None)
        assert client.body.is_closed
        await offload.close()

    asyncio.run(main())


def refused(url: str, config: StoreConfig = PATIENT) -> StreamlogError:
    async def main() -> StreamlogError:
        offload = ThreadOffload()
        with pytest.raises(StreamlogError) as raised:
            await open_store(parse_store_url(url), offload, SystemClock(), config=config)
        await offload.close()
        return raised.value

    return asyncio.run(asyncio.wait_for(main(), 90))


@pytest.fixture(params=CLIENTS)
def url(s3: S3Tests, request: pytest.FixtureRequest) -> str:
    return s3.new_url(client=request.param)


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_bad_credentials(url: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "wrong")
    error = refused(url)
    assert isinstance(error, Unauthorized)
    assert "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in error.message
    assert "wrong" not in error.message


def test_no_credentials(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    error = refused(url)
    assert isinstance(error, Unauthorized)
    assert "~/.aws/credentials" in error.message


def test_no_such_bucket(url: str) -> None:
    error = refused(url.replace(BUCKET, "another-bucket"))
    assert type(error) is Invalid
    assert "there is no bucket another-bucket" in error.message
    assert "make it" in error.message


def test_a_wrong_region(s3: S3Tests) -> None:
    """boto3 by itself goes where the store sends it."""
    url = s3.new_url(client="obstore")
    error = refused(url.replace("region=us-east-1", "region=eu-central-1"))
    assert isinstance(error, Invalid)
    assert "region eu-central-1 is wrong" in error.message
    assert "us-east-1" in error.message


def test_an_endpoint_without_a_server(url: str) -> None:
    error = refused(re.sub(r":\d+&", f":{free_port()}&", url), QUICK)
    assert isinstance(error, StoreUnavailable)
    assert "cannot be reached" in error.message
    assert "endpoint=" in error.message


def test_a_store_in_a_bucket_needs_a_place_for_metadata(s3: S3Tests) -> None:
    async def main() -> None:
        async with streamlog.open(s3.new_url()):
            raise AssertionError("opened")

    with pytest.raises(Invalid, match="rocksdb:///abs/path") as raised:
        asyncio.run(main())
    assert "etcd://" in raised.value.message


def test_the_command_reports_the_error_in_one_line(s3: S3Tests, tmp_path: Path) -> None:
    url = s3.new_url().replace(BUCKET, "another-bucket")
    done = subprocess.run(
        [sys.executable, "-m", "streamlog.cli", "serve", "--store", url,
         "--meta", f"rocksdb://{tmp_path}/meta", "--listen", "127.0.0.1:0"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "there is no bucket another-bucket" in done.stderr.splitlines()[-1]
    assert s3.server.secret_key not in done.stderr
