"""The columns of the Parquet files that an import reads, found before its first record is written.

1. The columns of one file do where it has all that are read, and none of these is nested: Spark
   reads what other files have under the same name, or fails.
2. Otherwise the columns of all files are looked at. What a nested column has in other files only
   would be left out without an error, and of a column that the one file lacks the type is unknown.
3. Spark merges the columns of all files, and fails where one of them, read or not, has types that
   cannot be merged. The files are halved then until each part can be merged, and of the results
   only the columns that are read are merged. Files whose types alternate cost up to two calls a
   file; those that changed their types some day a few in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from streamlog.errors import Invalid

_REASON = re.compile(r"\[[A-Z_.]+\].*?(?= SQLSTATE:| JVM stacktrace:| at org\.|$)")
_GLOB = re.compile(r"([{}\[\]*?\\])")


def schema_to_read(
    spark: Any, path: str, key: str | None, value: str | None, *, keep_partitions: bool
) -> StructType:
    """Errors: Invalid."""
    read = [value or "value", key or "key", *["partition"] * keep_partitions]
    try:
        first = _reader(spark).load(path).schema
        known = {field.name: field.dataType for field in first if not is_nested(field.dataType)}
        if known.keys() >= set(read):
            return first
        if value is None and "value" not in first.names:
            # Whole rows, unless other files have the column.
            return _merged(spark, [path])
        schemas = _schemas(spark, path)
    except _spark_errors() as error:
        raise Invalid(f"{path} cannot be imported: {_reason(error)}") from error
    fields = [field for field in first if field.name not in read]
    for name in read:
        kinds = [schema[name].dataType for schema in schemas if name in schema.names]
        if kinds:
            kind = known.get(name) or _common(f"{path} cannot be imported: {name}", kinds)
            fields.append(StructField(name, kind))
    return StructType(fields)


def is_nested(kind: DataType) -> bool:
    return isinstance(kind, StructType | ArrayType | MapType)


def _reader(spark: Any) -> Any:
    return spark.read.format("parquet").option("recursiveFileLookup", "true")


def _merged(spark: Any, paths: list[str]) -> StructType:
    schema: StructType = _reader(spark).option("mergeSchema", "true").load(paths).schema
    return schema


def _schemas(spark: Any, path: str) -> list[StructType]:
    """Of all files, or of parts of them that cannot be merged with one another."""
    try:
        return [_merged(spark, [path])]
    except _spark_errors() as error:
        if not _is_conflict(error):
            raise
    urls = sorted(_reader(spark).load(path).inputFiles())
    return _halved(spark, [_GLOB.sub(r"\\\1", unquote(url)) for url in urls])


def _halved(spark: Any, files: list[str]) -> list[StructType]:
    schemas: list[StructType] = []
    middle = len(files) // 2
    for part in (files[:middle], files[middle:]):
        try:
            schemas.append(_merged(spark, part))
        except _spark_errors() as error:
            if len(part) == 1 or not _is_conflict(error):
                raise
            schemas += _halved(spark, part)
    return schemas


def _common(what: str, kinds: Iterable[DataType]) -> DataType:
    """The type in which all of a column can be read. Errors: Invalid."""
    found = list(dict.fromkeys(kinds))
    if all(isinstance(kind, StringType | BinaryType) for kind in found):
        return found[0] if len(found) == 1 else BinaryType()
    return reduce(lambda one, other: _merge(what, one, other), found)


def _merge(what: str, one: DataType, other: DataType) -> DataType:
    """With the fields of both. Errors: Invalid."""
    match one, other:
        case (StructType(), StructType()):
            fields = {field.name: field.dataType for field in one}
            for field in other:
                kind = fields.get(field.name, field.dataType)
                fields[field.name] = _merge(f"{what}.{field.name}", kind, field.dataType)
            return StructType([StructField(name, kind) for name, kind in fields.items()])
        case (ArrayType(), ArrayType()):
            return ArrayType(_merge(what, one.elementType, other.elementType))
        case (MapType(), MapType()):
            key = _merge(what, one.keyType, other.keyType)
            return MapType(key, _merge(what, one.valueType, other.valueType))
    if one != other:
        raise Invalid(
            f"{what} is {one.simpleString()} in one file and {other.simpleString()} in another. "
            "Keep such files in folders of their own."
        )
    return one


def _is_conflict(error: Exception) -> bool:
    return "CANNOT_MERGE" in str(error)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    match = _REASON.search(text)
    why = match[0] if match else text.partition(" at ")[0]
    if "CANNOT_MERGE" in why:
        why += " Take one column with --value, or keep such files in folders of their own."
    return why


def _spark_errors() -> tuple[type[Exception], ...]:
    """Py4J's are those that PySpark does not know; Spark Connect's client has no Py4J."""
    if find_spec("py4j") is None:
        return (PySparkException,)
    from py4j.protocol import Py4JJavaError

    return (PySparkException, Py4JJavaError)
