"""A real Apache Kafka on this machine: a KRaft node on free ports, over a folder of its own."""

from __future__ import annotations

import base64
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from benchmarks.spark.jars import kafka_jars
from streamlog.demo import child
from streamlog.demo.ports import free_port
from streamlog.errors import Unavailable

START_TIMEOUT_S = 120.0
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

    `advertised`: the address that clients are told; its own where None. `jvm`: options of Java,
    for the server's heap, too. `settings`: the server's, beside those that one node needs.
    `features`: levels of the cluster's features; the newest ones where they are not named.
    `environment`: of its processes, beside this one's.
    """

    def __init__(
        self,
        folder: Path,
        advertised: str | None = None,
        *,
        jvm: Sequence[str] = ("-Xmx1g",),
        settings: Mapping[str, object] = MappingProxyType({}),
        features: Mapping[str, int] = MappingProxyType({}),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._jvm = tuple(jvm)
        self._features = dict(features)
        self._environment = environment
        self._output = folder / "server.log"
        self._logging = folder / "log4j2.properties"
        self._logging.write_text(LOGGING)
        self._class_path = os.pathsep.join(map(str, kafka_jars().paths))
        self._process: subprocess.Popen[bytes] | None = None
        self._is_formatted = False
        self.server = f"127.0.0.1:{free_port()}"
        self.data = folder / "data"
        self._properties = folder / "server.properties"
        values = {**_properties(self.data, self.server, advertised, free_port()), **settings}
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def segments(self, topic: str, partition: int = 0) -> list[Path]:
        """The segments of a partition, the oldest first."""
        return sorted((self.data / f"{topic}-{partition}").glob("*.log"))

    def start(self) -> Self:
        """Returns when the broker takes connections. Errors: Unavailable, with its last words."""
        if not self._is_formatted:
            self._format()
        self._process = self._java("kafka.Kafka", str(self._properties))
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
        features = [f"--feature={name}={level}" for name, level in self._features.items()]
        formatting = self._java(*tool, *features, "-c", str(self._properties))
        if formatting.wait(START_TIMEOUT_S) != 0:
            raise Unavailable(f"Kafka's data was not formatted: {self._last_words()}")
        self._is_formatted = True

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                ["java", *self._jvm, f"-Dlog4j2.configurationFile={self._logging}",
                 "-cp", self._class_path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self._environment},
                start_new_session=True,
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
        child.terminate(process, 30)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            child.kill(process)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _properties(
    data: Path, server: str, advertised: str | None, controller_port: int
) -> dict[str, object]:
    controller = f"127.0.0.1:{controller_port}"
    # The broker asks itself things, too: not by the address that clients are told.
    internal = f"127.0.0.1:{free_port()}"
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.bootstrap.servers": controller,
        "listeners": f"PLAINTEXT://{server},INTERNAL://{internal},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{advertised or server},INTERNAL://{internal},"
        f"CONTROLLER://{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
