"""Takes the loaded modules of a Python worker out of garbage collection.

Spark collects garbage after every task and every call of a planner, each time through all modules:
that takes 60 to 80 ms, where a task may need 10.
"""

from __future__ import annotations

import gc
import os
import sys

_done: set[tuple[int, str]] = set()
"""(process id, stage): Spark forks workers."""


def freeze_gc(stage: str) -> None:
    """Call it at the end of a stage that loads modules; only its first call in a process acts."""
    key = os.getpid(), stage
    if key not in _done:
        _done.add(key)
        gc.collect()
        gc.freeze()


def freeze_worker_gc(stage: str) -> None:
    """As `freeze_gc`, if this is a worker process of Spark and not a user's program."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith("pyspark."):
        freeze_gc(stage)
