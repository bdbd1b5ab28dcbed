"""`format("streamlog")`, which Spark finds by name. It imports little: Spark loads it to learn the
name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from streamlog.spark.garbage_freeze import freeze_worker_gc

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class StreamlogDataSource(DataSource):
    """Topics as tables, with the columns of Spark's Kafka source."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        freeze_worker_gc("source")

    @classmethod
    def name(cls) -> str:
        return "streamlog"

    def schema(self) -> str:
        from streamlog.spark.arrow import schema_ddl

        flag = str(self.options.get("includeheaders", "false"))
        return schema_ddl(headers=flag.lower() == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        from streamlog.spark.source.readers import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from streamlog.spark.source.readers import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from streamlog.spark.sink.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """`overwrite`, which is output mode complete, appends every result, as to Kafka."""
        from streamlog.spark.sink.sink import stream_writer

        return stream_writer(self.options, schema)
