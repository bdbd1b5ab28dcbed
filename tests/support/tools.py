"""`python -m tests.support.tools` gets, once, the tools that tests use and pip does not install.

Without it the first test that needs a program waits for its build, beyond its time-out on a busy
machine.
"""

from __future__ import annotations

import os

from streamlog.demo.s3_server import server_program
from tests.support.go_clients import go_clients
from tests.support.grpcurl import grpcurl
from tests.support.kafka_jars import clients_jar


def main() -> None:
    """Errors: Unavailable, with the output of the build that failed."""
    s3_server = server_program(os.environ.get("TEST_S3_SERVER") or "versitygw")
    for program in (s3_server, grpcurl(), go_clients(), clients_jar()):
        print(f"tests use {program}", flush=True)


if __name__ == "__main__":
    main()
