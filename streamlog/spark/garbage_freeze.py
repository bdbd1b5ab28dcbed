"""What a Python worker of Spark has loaded is taken out of garbage collection.

Spark collects after every task and every call of a planner, through all modules each time: 60 to
80 ms, of a task that may need 10.
"""

from __future__ import annotations

import gc
import os
import sys

_done: set[tuple[int, str]] = set()
"""By process: Spark forks workers."""


def freeze_gc(stage: str) -> None:
    """At the end of a stage that loads modules; from its second call in a process on, nothing."""
    key = os.getpid(), stage
    if key not in _done:
        _done.add(key)
        gc.collect()
        gc.freeze()


def freeze_worker_gc(stage: str) -> None:
    """As `freeze_gc`, where the process is Spark's and not somebody's program."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith("pyspark."):
        freeze_gc(stage)
