"""The write-ahead log's settings (`wal=disk`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamlog.errors import InvalidConfig
from streamlog.format.wal.frame import ALIGNMENT
from streamlog.runtime.config import setting

MIB = 1 << 20


WalMode = Literal["disk", "object"]
"""When an append is durable: after a sync to the local disk, or after upload and commit."""


@dataclass(frozen=True, slots=True)
class WalConfig:
    """Disk space of the log, and how it is cut."""

    wal_bytes_max: int = setting(
        256 * MIB,
        "Disk space of the log. What is appended stays in it until it is uploaded and committed; "
        "when it is full, appends wait. More rides out longer store outages and makes recovery "
        "after a crash longer.",
        minimum=2 * ALIGNMENT,
    )
    file_bytes: int = setting(
        32 * MIB,
        "Size of a log file; space is freed by whole files. At most half of wal_bytes_max. Where "
        "objects are on the same disk, one is taken into use only if room for another one, and for "
        "the uploads at a time, is left for them. Smaller ones are freed sooner and waste more "
        "space at their ends.",
        minimum=2 * ALIGNMENT,
    )
    spare_files: int = setting(
        1,
        "Files kept ready, written in full, so that appends never wait for a new one. Each costs "
        "file_bytes of disk within wal_bytes_max.",
        minimum=1,
    )

    accept_data_loss: bool = setting(
        False,
        "Start although the log holds acknowledged appends that have no place in the metadata, "
        "after a recovery or with the wrong folder, or although a part of the log is damaged: what "
        "has no place or cannot be read is given up, with a warning. Without it the node does not "
        "start then. For one start, with a copy of the folder kept.",
    )

    def __post_init__(self) -> None:
        if self.file_bytes % ALIGNMENT:
            raise InvalidConfig(f"file_bytes must be a multiple of {ALIGNMENT}")
        if 2 * self.file_bytes > self.wal_bytes_max:
            raise InvalidConfig(
                f"wal_bytes_max ({self.wal_bytes_max}) must be at least twice file_bytes "
                f"({self.file_bytes}): one file is written while another is uploaded"
            )
