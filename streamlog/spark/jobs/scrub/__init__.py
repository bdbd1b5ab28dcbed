"""The scrub job: every object read and checked against its checksums.

Imports reads. Used by the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.runtime.exports import lazy_exports

if TYPE_CHECKING:
    from streamlog.spark.jobs.scrub.job import scrub as scrub
    from streamlog.spark.jobs.scrub.node import scrub_node as scrub_node

__all__ = ["scrub", "scrub_node"]

__getattr__ = lazy_exports(
    __name__,
    {
        "scrub": "streamlog.spark.jobs.scrub.job",
        "scrub_node": "streamlog.spark.jobs.scrub.node",
    },
)
