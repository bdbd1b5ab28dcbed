"""A real node as a child process: started, killed, started again on the same port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from prometheus_client.parser import text_string_to_metric_families

from streamlog.demo import child
from streamlog.demo.ports import free_port

STOP_S_MAX = 60


@dataclass
class NodeProcess:
    """`streamlog dev` on a folder of its own, or on `places`."""

    data: Path
    wal: str = "disk"
    arguments: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside the test's own."""
    banner: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    _log: IO[str] | None = None

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.data.parent / f"{self.data.name}.log"

    def start(self) -> NodeProcess:
        """Returns when the node has printed its address."""
        self._log = self.log_path.open("a")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "streamlog.cli.main", "dev", "--json"),
                *(self.places or ("--data", str(self.data))),
                *("--wal", self.wal),
                *("--listen", self.server, "--http-listen", "127.0.0.1:0"),
                *self.arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # Not the default port, for which nodes of other tests may ask at the same time.
            env={
                "STREAMLOG_NODE__KAFKA_LISTEN": "127.0.0.1:0",
                **os.environ,
                **self.environment,
                "PYTHONUNBUFFERED": "1",
            },
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(30)
            raise RuntimeError(f"the node did not start: {self.log_path.read_text()[-2000:]}")
        self.banner = json.loads(line)
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def metric(self, name: str) -> float:
        """A sample of the metrics page, summed over its labels."""
        with urllib.request.urlopen(f"http://{self.banner['http']}/metrics", timeout=10) as page:
            text = page.read().decode()
        samples = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        ]
        assert samples, f"no metric {name}"
        return sum(samples)

    def kill(self) -> None:
        """Sends SIGKILL: the node cleans up nothing."""
        assert self.process is not None
        child.kill(self.process)
        self._close_files()

    def stop(self) -> int:
        """Sends SIGTERM and returns the exit code."""
        assert self.process is not None
        has_stopped = child.terminate(self.process, STOP_S_MAX)
        code = self._close_files()
        assert has_stopped, f"the node did not stop within {STOP_S_MAX} s; see {self.log_path}"
        return code

    def _close_files(self) -> int:
        """The exit code of the process, which has ended."""
        assert self.process is not None
        code = self.process.returncode
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert self._log is not None
        self._log.close()
        self.process = None
        return code

    def __enter__(self) -> NodeProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.stop()
