"""The engine of a node's `--data` folder, opened as the node and the tools on its data do."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import streamlog
from streamlog.wiring import OpenEngine


def engine_of(data: Path, **how: Any) -> AbstractAsyncContextManager[OpenEngine]:
    """`how`: more parameters of `streamlog.open`."""
    return streamlog.open(
        f"local://{data}/objects",
        meta=f"rocksdb://{data}/meta",
        wal="disk",
        wal_dir=data / "wal",
        log_dir=data / "logs",
        **how,
    )
