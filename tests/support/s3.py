"""A real S3 server for tests: versitygw, or MinIO with TEST_S3_SERVER=minio."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from streamlog.demo.s3_server import S3Server

BUCKET = "streamlog-tests"
_numbers = itertools.count()


class S3Tests:
    """A server with one bucket, which gives every test a fresh prefix."""

    def __init__(self, server: S3Server) -> None:
        self.server = server

    def new_url(self, *, client: str = "boto3", endpoint: str | None = None) -> str:
        """A store URL with a fresh prefix; `endpoint` may name a proxy before the server."""
        url = self.server.url(BUCKET, f"t{next(_numbers)}", client=client)
        return url if endpoint is None else url.replace(self.server.endpoint, endpoint)


def start(folder: Path) -> S3Server:
    """Starts a server with its bucket. Errors: Unavailable, if it cannot be built or started."""
    server = S3Server(folder, os.environ.get("TEST_S3_SERVER") or "versitygw").start()
    server.make_bucket(BUCKET)
    return server
