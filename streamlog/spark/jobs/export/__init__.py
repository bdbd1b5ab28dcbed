"""The export job: a topic's records into Parquet files with a manifest, and back.

Imports plans and reads. Used by the command line and by the Iceberg job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.runtime.exports import lazy_exports

if TYPE_CHECKING:
    from streamlog.spark.jobs.export.job import export as export
    from streamlog.spark.jobs.export.load import import_files as import_files

__all__ = ["export", "import_files"]

__getattr__ = lazy_exports(
    __name__,
    {
        "export": "streamlog.spark.jobs.export.job",
        "import_files": "streamlog.spark.jobs.export.load",
    },
)
