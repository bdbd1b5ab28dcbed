"""Functions for DataFrames that are written to topics."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql.types import IntegerType

from streamlog.codec.columns import key_partitions
from streamlog.errors import Invalid
from streamlog.spark.sink.write_columns import binary_column


def partition_of(key: Column | str, partitions: int) -> Column:
    """The partition where the sink and every client put the key; null for a null key.

    Repartitioned by it, rows of one partition lie in few tasks, and a write has few pairs of a
    staged object and a partition: `df.withColumn("partition", partition_of("key", 1000))
    .repartition("partition")`. Errors: Invalid.
    """
    if partitions < 1:
        raise Invalid(f"{partitions} partitions; a topic has at least one")

    def chosen(keys: pa.Array) -> pa.Array:
        chosen_partitions = key_partitions(binary_column(keys), len(keys), partitions)
        numbers = pa.Array.from_buffers(
            pa.int32(), len(keys), [None, pa.py_buffer(chosen_partitions)]
        )
        return pc.if_else(keys.is_null(), pa.scalar(None, pa.int32()), numbers)

    column = sql.col(key) if isinstance(key, str) else key
    choose = sql.arrow_udf(chosen, IntegerType())
    result: Column = choose(column.cast("binary"))
    return result
