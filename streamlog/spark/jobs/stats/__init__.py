"""The statistics job: counts, sizes and sketches of a topic's records.

Imports plans and reads. Used by the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.runtime.exports import lazy_exports

if TYPE_CHECKING:
    from streamlog.spark.jobs.stats.job import stats as stats

__all__ = ["stats"]

__getattr__ = lazy_exports(__name__, {"stats": "streamlog.spark.jobs.stats.job"})
