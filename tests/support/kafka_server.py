"""A real Apache Kafka on this machine: a KRaft node on free ports, over a folder of its own."""

from __future__ import annotations

import base64
import ctypes
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from streamlog.demo.ports import free_port
from streamlog.errors import Unavailable
from tests.support.kafka_jars import class_path

START_TIMEOUT_S = 120.0
DAY_MS = 86_400_000
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""A short life on few cores: little is worth compiling well."""

LOGGING = """\
status=error
rootLogger.level=warn
rootLogger.appenderRef.c.ref=c
appender.c.type=Console
appender.c.name=c
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d %p %c %m%n
"""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """For a child between fork and exec: the kernel kills it when the thread that made it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class KafkaServer:
    """Runs between `start` and `stop`; its port and its data stay over a stop and start.

    `advertised`: the address that clients are told; its own where None.
    """

    def __init__(self, folder: Path, advertised: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._output = folder / "server.log"
        self._logging = folder / "log4j2.properties"
        self._logging.write_text(LOGGING)
        self._class_path = class_path()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_formatted = False
        self.server = f"127.0.0.1:{free_port()}"
        self.data = folder / "data"
        self._properties = folder / "server.properties"
        self._properties.write_text(_properties(self.data, self.server, advertised, free_port()))

    def segments(self, topic: str, partition: int = 0) -> list[Path]:
        """The segments of a partition, the oldest first."""
        return sorted((self.data / f"{topic}-{partition}").glob("*.log"))

    def start(self) -> Self:
        """Returns when the broker takes connections. Errors: Unavailable, with its last words."""
        if not self._is_formatted:
            self._format()
        self._process = self._java("-Xmx700m", "kafka.Kafka", str(self._properties))
        try:
            self._await_connection(self._process)
        except BaseException:
            self.kill()
            raise
        return self

    def _format(self) -> None:
        # It may begin with a hyphen, and would be taken for an option as a word of its own.
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        tool = ("kafka.tools.StorageTool", "format", "--standalone", f"--cluster-id={cluster_id}")
        formatting = self._java("-Xmx200m", *tool, "-c", str(self._properties))
        if formatting.wait(START_TIMEOUT_S) != 0:
            raise Unavailable(f"Kafka's data was not formatted: {self._last_words()}")
        self._is_formatted = True

    def _java(self, heap: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                ["java", heap, *QUICK, f"-Dlog4j2.configurationFile={self._logging}",
                 "-cp", self._class_path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent,
            )  # fmt: skip

    def _await_connection(self, process: subprocess.Popen[bytes]) -> None:
        host, _, port = self.server.partition(":")
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError as error:
                if process.poll() is None and time.monotonic() < give_up_at:
                    time.sleep(0.1)
                    continue
                raise Unavailable(f"Kafka did not start: {error}; {self._last_words()}") from error

    def _last_words(self) -> str:
        return f"its output ends: {self._output.read_text(errors='replace')[-2000:]}"

    def stop(self) -> None:
        """SIGTERM: the broker closes its logs; SIGKILL where that takes too long."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        # The data goes with the test's folder: nothing has to be closed well.
        self.kill()


def _properties(data: Path, server: str, advertised: str | None, controller_port: int) -> str:
    controller = f"127.0.0.1:{controller_port}"
    values: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.bootstrap.servers": controller,
        "listeners": f"PLAINTEXT://{server},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{advertised or server},CONTROLLER://{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "log.index.size.max.bytes": 65536,
        # Records of tests are old, and stay: nothing is deleted by time.
        "log.initial.task.delay.ms": DAY_MS,
        "log.retention.check.interval.ms": DAY_MS,
        "num.io.threads": 2,
        "num.network.threads": 1,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())
