"""Makes `spark.read.format("streamlog")` known: Spark looks for `DefaultSource` in modules whose
names begin with `pyspark_`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    """Imports pyarrow and the rest when Spark asks, not before."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from streamlog.spark.source import StreamlogDataSource

    return StreamlogDataSource
