"""A Prometheus of the machine, started on a configuration, and what its HTTP interface says."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Prometheus:
    address: str
    log: Path

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer. Errors: AssertionError with what Prometheus says instead."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            said = json.load(error)
        assert said["status"] == "success", f"{parameters}: {said}"
        return said["data"]

    def value(self, expression: str) -> float | None:
        """Of the first series of an instant query; None: it has none."""
        series = self.get("query", query=expression)["result"]
        return float(series[0]["value"][1]) if series else None

    def until(self, is_so: Callable[[], bool], what: str, within_s: float = 60) -> None:
        """Asks until it is so. Errors: AssertionError with the end of the log."""
        deadline = time.monotonic() + within_s
        while not is_so():
            said = self.log.read_text("utf-8", "replace")[-2000:]
            assert time.monotonic() < deadline, f"{what} did not come about: {said}"
            time.sleep(0.2)


@contextmanager
def running_prometheus(config: str, folder: Path) -> Iterator[Prometheus]:
    """Errors: FileNotFoundError, where no Prometheus is on the PATH."""
    (folder / "prometheus.yml").write_text(config)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    found = Prometheus(address, log)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text("utf-8", "replace")
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        found.until(is_ready, "a Prometheus that answers")
        yield found
    finally:
        process.terminate()
        process.wait(timeout=30)
