"""The Spark source: `spark.read` and `readStream` of topics and streams.

Imports plans and reads. Loaded by Spark by its name, `streamlog`.
"""

from streamlog.spark.source.data_source import StreamlogDataSource

__all__ = ["StreamlogDataSource"]
