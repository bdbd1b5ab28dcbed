"""A streamlog node as a child process of a benchmark, with its CPU time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass
class RunningNode:
    server: str
    http: str
    process: psutil.Process
    started_in_s: float

    def cpu_s(self) -> float:
        """User and system seconds of the node and its children so far."""
        times = [self.process, *self.process.children(recursive=True)]
        return sum(sum(p.cpu_times()[:2]) for p in times)

    def rss_bytes(self) -> int:
        processes = [self.process, *self.process.children(recursive=True)]
        return sum(p.memory_info().rss for p in processes)


@contextmanager
def running_node(
    data: Path, *, wal: str, settings: dict[str, str] | None = None, command: str = "dev"
) -> Iterator[RunningNode]:
    """Starts `streamlog dev` on free ports; stops it at the end."""
    arguments = [sys.executable, "-m", "streamlog.cli.main", command, "--json"]
    arguments += ["--data", str(data), "--wal", wal]
    arguments += ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    if settings:
        config = data.parent / f"{data.name}.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(as_toml(settings))
        arguments += ["--config", str(config)]
    began = time.perf_counter()
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        banner = json.loads(child.stdout.readline())
        started = time.perf_counter() - began
        yield RunningNode(banner["grpc"], banner["http"], psutil.Process(child.pid), started)
    finally:
        child.terminate()
        child.wait(60)


def as_toml(settings: dict[str, str]) -> str:
    """{"engine.wal.wal_bytes_max": "1"} as a TOML file; values are TOML literals."""
    sections: dict[str, list[str]] = {}
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, []).append(f"{key} = {value}")
    return "\n".join(f"[{section}]\n" + "\n".join(keys) for section, keys in sections.items())
