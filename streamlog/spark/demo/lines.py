"""Log lines of any system as columns: level, component, template. Spark's own functions alone."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as f

LEVELS = {
    "ERROR": ("error", "err", "severe", "fatal", "critical", "crit", "alert", "panic", "failure",
              "e", "f"),
    "WARN": ("warning", "warn", "w"),
    "INFO": ("info", "notice", "i"),
    "DEBUG": ("debug", "trace", "verbose", "d", "v"),
}  # fmt: skip
"""The static table: level → its words, in lower case."""
OTHER = "OTHER"
"""The level of lines that name none."""
COLOURS = {
    OTHER: "#bab0ac", "DEBUG": "#76b7b2", "INFO": "#4e79a7", "WARN": "#f28e2b", "ERROR": "#e15759",
}  # fmt: skip

_WORDS = sorted((w for words in LEVELS.values() for w in words if len(w) > 1), key=len)[::-1]
_LEVEL = rf"(?i)\b({'|'.join(_WORDS)})\b"
_LETTER = r"\s([VDIWEF])[\s/]+[\w.$-]+\s*[:(]"
_COMPONENT = r"(?:^|[\s\]])([A-Za-z_][\w.$/-]*)(?:\[\d+\]|\([\w-]*\))?:(?:\s|$)"
_VARIABLE = (
    r"\b\d+(?:\.\d+){3}(?::\d+)?\b"  # addresses
    r"|\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b"  # hexadecimal numbers
    r"|\d+(?:[.,:/-]\d+)*"  # numbers, dates, times
)
TEMPLATE_CHARACTERS = 160


def level_table(spark: Any) -> Any:
    """word, level."""
    rows = [(word, level) for level, words in LEVELS.items() for word in words]
    return spark.createDataFrame(rows, "word string, level string")


def parsed(records: Any, levels: Any) -> Any:
    """source (the topic), timestamp, level, component, template, for each record.

    A line's level is the first word that names one, or a letter as Android writes it. Its component
    stands before a colon, "-" if there is none. Its template is the line without its numbers.
    """
    line = f.decode("value", "UTF-8")
    word = f.regexp_extract(line, _LEVEL, 1)
    letter = f.regexp_extract(line, _LETTER, 1)
    component = f.regexp_extract(line, _COMPONENT, 1)
    columns = records.select(
        f.col("topic").alias("source"),
        "timestamp",
        f.lower(f.when(letter != "", letter).otherwise(word)).alias("word"),
        f.when(component == "", "-").otherwise(component).alias("component"),
        f.substring(f.regexp_replace(line, _VARIABLE, "<*>"), 1, TEMPLATE_CHARACTERS).alias(
            "template"
        ),
    )
    return (
        columns.join(f.broadcast(levels), "word", "left")
        .withColumn("level", f.coalesce("level", f.lit(OTHER)))
        .drop("word")
    )
