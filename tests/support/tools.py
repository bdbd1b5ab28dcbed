"""`python -m tests.support.tools` builds, once, the tools that tests use and pip does not install.

Without it the first test that needs a program waits for its build, beyond its time-out on a busy
machine.
"""

from __future__ import annotations

import os

from streamlog.demo.s3_server import server_program
from tests.support.grpcurl import grpcurl


def main() -> None:
    """Errors: Unavailable, with the output of the build that failed."""
    for program in (server_program(os.environ.get("TEST_S3_SERVER") or "versitygw"), grpcurl()):
        print(f"tests use {program}", flush=True)


if __name__ == "__main__":
    main()
