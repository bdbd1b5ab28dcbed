"""The Iceberg job: a topic's records appended to a table, each commit once.

Imports the export job. Used by the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.runtime.exports import lazy_exports

if TYPE_CHECKING:
    from streamlog.spark.jobs.iceberg.job import export_iceberg as export_iceberg

__all__ = ["export_iceberg"]

__getattr__ = lazy_exports(__name__, {"export_iceberg": "streamlog.spark.jobs.iceberg.job"})
