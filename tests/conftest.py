"""What tests of all folders share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support import s3 as s3_support
from tests.support.s3 import S3Tests

# A shell that starts the tests in the background has them ignore Ctrl-C, and all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


NAME_BYTES_MAX = 64


def pytest_make_parametrize_id(val: object) -> str | None:
    """Long bytes name a test by their size.

    Each worker collects the tests by itself, and all must find the same names. Compressed bytes
    may hold the second in which they were made.
    """
    if isinstance(val, bytes) and len(val) > NAME_BYTES_MAX:
        return f"{len(val)}-bytes"
    return None


@pytest.fixture(scope="session")
def s3_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Tests]:
    """An S3 server that lives as long as the test process."""
    server = s3_support.start(tmp_path_factory.mktemp("s3"))
    yield S3Tests(server)
    server.stop()


@pytest.fixture
def s3(s3_tests: S3Tests, monkeypatch: pytest.MonkeyPatch) -> S3Tests:
    """The server, its credentials in the environment, and nobody else's."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_tests.server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_tests
