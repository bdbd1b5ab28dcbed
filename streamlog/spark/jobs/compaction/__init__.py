"""The compaction job: the node's compaction jobs carried out by Spark's tasks.

Imports reads. Used by the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.runtime.exports import lazy_exports

if TYPE_CHECKING:
    from streamlog.spark.jobs.compaction.job import CompactionPlaces as CompactionPlaces
    from streamlog.spark.jobs.compaction.job import compact as compact
    from streamlog.spark.jobs.compaction.node import compact_node as compact_node

__all__ = ["CompactionPlaces", "compact", "compact_node"]

__getattr__ = lazy_exports(
    __name__,
    {
        "CompactionPlaces": "streamlog.spark.jobs.compaction.job",
        "compact": "streamlog.spark.jobs.compaction.job",
        "compact_node": "streamlog.spark.jobs.compaction.node",
    },
)
