"""A process whose memory is measured: what it holds at most against what its settings allow."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from streamlog.compaction.plan.config import CompactionConfig
from streamlog.engine.config import MIB, AppendConfig, ReadConfig, StreamEngineConfig
from streamlog.metadata.config import MetadataConfig

BASE_BYTES = 158 * MIB
FACTOR = 1.5

CONFIG = StreamEngineConfig(
    append=AppendConfig(append_bytes_max=4 * MIB, batch_bytes_max=MIB),
    read=ReadConfig(tail_cache_bytes=2 * MIB, block_cache_bytes=MIB, index_cache_bytes=MIB),
    metadata=MetadataConfig(block_cache_bytes=MIB),
    compaction=CompactionConfig(compaction_memory_bytes=4 * MIB, object_stats_cache_bytes=MIB),
)
"""Small bounds, so that uncharged memory shows."""


def bounds(config: StreamEngineConfig) -> dict[str, int]:
    """Every setting that bounds memory, in bytes."""
    return {
        "append_bytes_max": config.append.append_bytes_max,
        "tail_cache_bytes": config.read.tail_cache_bytes,
        "block_cache_bytes": config.read.block_cache_bytes,
        "index_cache_bytes": config.read.index_cache_bytes,
        "metadata block_cache_bytes": config.metadata.block_cache_bytes,
        "compaction_memory_bytes": config.compaction.memory_bytes("local:"),
        "object_stats_cache_bytes": config.compaction.object_stats_cache_bytes,
    }


@dataclass(frozen=True)
class Measured:
    """The process's report at its end; `peak_bytes`: of resident memory."""

    peak_bytes: int
    facts: dict[str, int]

    def check(self, config: StreamEngineConfig, beside: int = 0) -> None:
        """`beside`: bytes that no setting bounds."""
        found = bounds(config)
        allowed = BASE_BYTES + FACTOR * sum(found.values()) + beside
        assert self.peak_bytes <= allowed, (
            f"{self.peak_bytes / MIB:.0f} MiB resident, {allowed / MIB:.0f} MiB allowed: "
            f"{BASE_BYTES / MIB:.0f} + {FACTOR} × {found} + {beside / MIB:.0f}; {self.facts}"
        )


def tell(facts: dict[str, int]) -> None:
    """Called by the process at its end."""
    status = Path("/proc/self/status").read_text()
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"peak_bytes": int(peak) * 1024, "facts": facts}))


def measure(module: str, *args: str) -> Measured:
    """Runs `module`, which ends with `tell`, as a process of its own."""
    said = json.loads(run(module, *args).splitlines()[-1])
    return Measured(said["peak_bytes"], said["facts"])


def run(module: str, *args: str) -> str:
    """Runs `module` as a process of its own; returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", module, *args],
        stdout=subprocess.PIPE,
        timeout=150,
        check=True,
        text=True,
    )
    return done.stdout
