"""An S3 server on this machine: versitygw or MinIO as a child process over a folder.

For the demonstration, tests and benchmarks; never for data that matters.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from streamlog.demo import child
from streamlog.demo.go_tools import go_tool
from streamlog.demo.ports import free_port
from streamlog.errors import Unavailable

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A program, and the two variables that it takes its credentials from."""

    module: str
    version: str
    access_variable: str
    secret_variable: str


KINDS: Mapping[str, ServerKind] = {
    "versitygw": ServerKind(
        "github.com/versity/versitygw/cmd/versitygw",
        "v1.8.0",
        "ROOT_ACCESS_KEY",
        "ROOT_SECRET_KEY",
    ),
    "minio": ServerKind(
        "github.com/minio/minio", "latest", "MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD"
    ),
}


def server_program(kind: str) -> Path:
    """The program of `kind`, built when it is not there yet. Errors: Unavailable."""
    server = KINDS[kind]
    return go_tool(server.module, server.version)


class S3Server:
    """Runs between `start` and `stop`; listens on a free port of 127.0.0.1.

    `folder` holds its data and its log; a bucket is a folder of `folder/buckets`. Its port and
    credentials stay the same over a stop and start.
    """

    def __init__(self, folder: Path, kind: str = "versitygw") -> None:
        self._folder = folder
        self._name = kind
        self._kind = KINDS[kind]
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.access_key = f"key{secrets.token_hex(8)}"
        self.secret_key = secrets.token_hex(20)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What boto3's credential chain takes from a process's environment."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def bucket_folder(self, bucket: str) -> Path:
        """Where its objects are files."""
        return self._folder / "buckets" / bucket

    def url(self, bucket: str, prefix: str = "", *, client: str = "boto3") -> str:
        """A store URL on this server."""
        return (
            f"s3://{bucket}/{prefix}?endpoint={quote(self.endpoint, safe=':/')}"
            f"&region={REGION}&path_style=true&client={client}"
        )

    def start(self) -> Self:
        """Returns when the server takes connections. Errors: Unavailable."""
        program = server_program(self._name)
        (self._folder / "buckets").mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        environment = {
            **os.environ,
            self._kind.access_variable: self.access_key,
            self._kind.secret_variable: self.secret_key,
            # MinIO takes any region unless it has one.
            "MINIO_SITE_REGION": REGION,
        }
        log_path = self._folder / "server.log"
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [str(program), *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        try:
            self._await_connection(self._process, log_path)
        except BaseException:
            self.stop()
            raise
        return self

    def _arguments(self) -> list[str]:
        address, data = f"127.0.0.1:{self.port}", str(self._folder / "buckets")
        if self._name == "minio":
            return ["server", "--quiet", "--address", address, data]
        options = ["--port", address, "--region", REGION, "--keep-alive", "--quiet", "posix"]
        if not _has_attributes(self._folder):
            sidecar = self._folder / "sidecar"
            sidecar.mkdir(exist_ok=True)
            options += ["--sidecar", str(sidecar)]
        return [*options, data]

    def _await_connection(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                if process.poll() is not None:
                    raise ConnectionError(f"port {self.port} is another server's")
                return
            except OSError as error:
                if process.poll() is None and time.monotonic() < give_up_at:
                    time.sleep(0.02)
                    continue
                log_end = log_path.read_text(errors="replace")[-1000:]
                raise Unavailable(
                    f"the S3 server did not start: {error}; it said: {log_end}"
                ) from error

    def make_bucket(self, bucket: str) -> None:
        """Errors: Unavailable."""
        self._request("create_bucket", Bucket=bucket)

    def uploads(self, bucket: str, prefix: str) -> list[str]:
        """Keys of multipart uploads that are neither complete nor aborted. Errors: Unavailable."""
        answer = self._request("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
        return [upload["Key"] for upload in answer.get("Uploads", ())]

    def keys(self, bucket: str, prefix: str) -> list[str]:
        """Of all objects whose keys begin so. Errors: Unavailable."""
        found: list[str] = []
        after: dict[str, str] = {}
        while True:
            answer = self._request("list_objects_v2", Bucket=bucket, Prefix=prefix, **after)
            found += [one["Key"] for one in answer.get("Contents", ())]
            if not answer["IsTruncated"]:
                return found
            after = {"ContinuationToken": answer["NextContinuationToken"]}

    def _request(self, name: str, **arguments: str) -> dict[str, Any]:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}),
        )
        try:
            answer: dict[str, Any] = getattr(client, name)(**arguments)
        except (BotoCoreError, ClientError) as error:
            raise Unavailable(f"{name} failed on the S3 server: {error}") from error
        finally:
            client.close()
        return answer

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that is not enough. Does nothing where no server runs."""
        process, self._process = self._process, None
        if process is None:
            return
        child.terminate(process, STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL: connections break. `start` starts the server again on the same port."""
        process, self._process = self._process, None
        if process is not None:
            child.kill(process)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _has_attributes(folder: Path) -> bool:
    """Whether the file system keeps extended attributes, where versitygw writes etags."""
    try:
        os.setxattr(folder, "user.streamlog", b"")
    except OSError:
        return False
    return True
