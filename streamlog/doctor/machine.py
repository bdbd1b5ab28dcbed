"""Checks of memory, open files and versions. Blocking, quick."""

from __future__ import annotations

import os
import platform
import resource
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from streamlog.codec import choice
from streamlog.doctor.findings import CheckOutcome, CheckResult
from streamlog.engine.config import StreamEngineConfig
from streamlog.format.checkpoint import state as checkpoint_state
from streamlog.format.checkpoint import tail as checkpoint_tail
from streamlog.format.object import header as object_header
from streamlog.format.records import commit as commit_record
from streamlog.format.wal import frame as wal_frame
from streamlog.log.shared.meta import codec as meta_codec
from streamlog.objectstore.cluster import guard as cluster_guard

MIB = 1 << 20
BASE_BYTES = 150 * MIB
"""Memory of a node without data."""
BOUND_FACTOR = 1.5
FILES_BASE = 256
"""WAL, metadata, listeners, requests under way."""
PACKAGES = (
    "streamlog-engine",
    "grpcio",
    "protobuf",
    "rocksdict",
    "boto3",
    "botocore",
    "urllib3",
    "zstandard",
    "awscrt",
    "cramjam",
    "aiohttp",
)
FORMATS = {
    "cluster file": cluster_guard.FORMAT_VERSION,
    "object": object_header.STAGED_VERSION,
    "WAL": wal_frame.VERSION,
    "commit record": commit_record.VERSION,
    "checkpoint": checkpoint_tail.VERSION,
    "checkpoint state": checkpoint_state.STAGING_VERSION,
    "log meta": meta_codec.VERSION_GROUP,
}
"""The newest version of each that this release reads and writes."""
PROTO_PACKAGE = "streamlog.v1"


def check_versions() -> CheckResult:
    versions: dict[str, str] = {}
    missing = []
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return CheckResult(
            "versions",
            CheckOutcome.FAIL,
            f"not installed: {', '.join(missing)}",
            "install streamlog-engine again",
        )
    formats = ", ".join(f"{name} {number}" for name, number in FORMATS.items())
    packages = ", ".join(f"{name} {text}" for name, text in versions.items())
    return CheckResult(
        "versions",
        CheckOutcome.INFO,
        f"Python {platform.python_version()} on {platform.system()} {platform.release()}; "
        f"{packages}; {choice.description()}; proto {PROTO_PACKAGE}; newest formats: {formats}",
    )


def memory_bound(config: StreamEngineConfig, store_url: str) -> int:
    """The most bytes that a node with these bounds may use, its compactor included."""
    read = config.read
    bounds = (
        config.append.append_bytes_max
        + read.tail_cache_bytes
        + read.block_cache_bytes
        + read.index_cache_bytes
        + config.metadata.block_cache_bytes
        + config.compaction.memory_bytes(store_url)
    )
    return BASE_BYTES + int(BOUND_FACTOR * bounds)


def check_memory(config: StreamEngineConfig, store_url: str) -> CheckResult:
    """Compares the memory of the machine, or of the control group, with the bounds."""
    has, needs = _memory_bytes(), memory_bound(config, store_url)
    summary = f"{has / MIB:.0f} MiB here, the configured bounds come to {needs / MIB:.0f} MiB"
    figures = {"memory_bytes": float(has), "bound_bytes": float(needs)}
    if has < needs:
        return CheckResult(
            "machine.memory",
            CheckOutcome.WARN,
            summary,
            "lower engine.append.append_bytes_max and the caches of [engine.read]",
            figures,
        )
    return CheckResult("machine.memory", CheckOutcome.PASS, summary, figures=figures)


def check_files(connections_max: int, listeners: int) -> CheckResult:
    """Compares the limit on open files with the number of connections that are allowed.

    `connections_max`: to each of the listeners.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needs = listeners * connections_max + FILES_BASE
    summary = f"{_limit(soft)} open files (hard limit {_limit(hard)}), {needs} wanted"
    if soft != resource.RLIM_INFINITY and soft < needs:
        return CheckResult(
            "machine.files",
            CheckOutcome.WARN,
            summary,
            f"raise it: ulimit -n {needs}, or LimitNOFILE= in the unit",
        )
    return CheckResult("machine.files", CheckOutcome.PASS, summary)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _memory_bytes() -> int:
    """The machine's memory, or what the control group allows if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text("ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total
