"""A streamlog node as a child process of a benchmark, with its CPU time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from streamlog.demo.child import terminate
from streamlog.errors import Unavailable

STOP_S_MAX = 60


@dataclass
class RunningNode:
    server: str
    http: str
    process: psutil.Process
    started_in_s: float
    kafka: str = ""
    """Where it speaks Kafka's protocol; empty: nowhere."""

    def cpu_s(self) -> float:
        """User and system seconds of the node and its children so far."""
        return cpu_s_of(self.process)

    def wait_until_idle(self) -> None:
        """Returns after 0.2 s in which the node took less than 10 ms of CPU."""
        before = self.cpu_s()
        while True:
            time.sleep(0.2)
            now = self.cpu_s()
            if now - before <= 0.01:
                return
            before = now

    def metric(self, name: str) -> float:
        """A sample without labels; 0 if there is none."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=30) as page:
            for line in page.read().decode().splitlines():
                found, _, value = line.partition(" ")
                if found == name:
                    return float(value)
        return 0.0

    def written_groups(self, wal: str) -> list[int]:
        """Mean bytes of a synced write, for each time that the mode writes a byte."""
        names = ["streamlog_engine_object_bytes"]
        if wal == "disk":
            names.append("streamlog_wal_group_bytes")
        return [
            max(4096, int(self.metric(f"{name}_sum") / max(1.0, self.metric(f"{name}_count"))))
            for name in reversed(names)
        ]

    def rss_bytes(self) -> int:
        processes = [self.process, *self.process.children(recursive=True)]
        return sum(p.memory_info().rss for p in processes)


def cpu_s_of(process: psutil.Process) -> float:
    """User and system seconds of a process and its children so far."""
    return sum(sum(p.cpu_times()[:2]) for p in (process, *process.children(recursive=True)))


def own_cpu_s() -> float:
    """User and system seconds of this process so far."""
    return sum(psutil.Process().cpu_times()[:2])


@contextmanager
def running_node(
    data: Path,
    *,
    wal: str,
    settings: dict[str, str] | None = None,
    command: str = "dev",
    store: str | None = None,
    meta: str | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[RunningNode]:
    """Starts `streamlog dev` on free ports; stops it at the end.

    `environment`: the node's, beside this process's.
    `store` and `meta`: URLs in place of the folder `data`, which then takes the WAL.
    """
    arguments = [sys.executable, "-m", "streamlog.cli.main", command, "--json", "--wal", wal]
    if store is None:
        arguments += ["--data", str(data)]
    else:
        arguments += ["--store", store, "--meta", str(meta), "--wal-dir", str(data / "wal")]
    arguments += ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    arguments += ["--kafka-listen", "127.0.0.1:0"]
    if settings:
        config = data.parent / f"{data.name}.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(as_toml(settings))
        arguments += ["--config", str(config)]
    began = time.perf_counter()
    child = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert child.stdout is not None
    try:
        banner = json.loads(child.stdout.readline())
        started = time.perf_counter() - began
        kafka = [one["address"] for one in banner["listeners"] if one["name"] == "kafka"]
        yield RunningNode(
            banner["grpc"], banner["http"], psutil.Process(child.pid), started, "".join(kafka)
        )
    finally:
        is_over = terminate(child, STOP_S_MAX)
        child.stdout.close()
        if not is_over:
            raise Unavailable(f"the node did not stop within {STOP_S_MAX} s")


def as_toml(settings: dict[str, str]) -> str:
    """{"engine.wal.wal_bytes_max": "1"} as a TOML file; values are TOML literals."""
    sections: dict[str, list[str]] = {}
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, []).append(f"{key} = {value}")
    return "\n".join(f"[{section}]\n" + "\n".join(keys) for section, keys in sections.items())
