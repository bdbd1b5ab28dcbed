"""`streamlog spark`: bulk work on executors."""

from __future__ import annotations

from typing import ClassVar

import click

from streamlog.cli.lazy import LazyGroup


class SparkCommands(LazyGroup):
    lazy: ClassVar = {
        "demo": (
            "streamlog.cli.commands.spark_demo:demo",
            "Log lines through a streaming job: parsed, counted by minute and level.",
        ),
        "scrub": (
            "streamlog.cli.commands.spark_scrub:scrub",
            "Read every live object on executors and check every CRC and range.",
        ),
        "stats": (
            "streamlog.cli.commands.spark_stats:stats",
            "Sizes, rates, keys and skew of topics.",
        ),
        "export": (
            "streamlog.cli.commands.spark_export:export",
            "Write topics as Parquet, into a folder or an Iceberg table.",
        ),
        "compact": (
            "streamlog.cli.commands.spark_compact:compact",
            "Merge small objects on executors, for a running node or offline.",
        ),
        "import": (
            "streamlog.cli.commands.spark_import:import_",
            "Write files to a topic, each once.",
        ),
    }


@click.group(cls=SparkCommands)
def spark() -> None:
    """Bulk work on Apache Spark.

    Needs this package's extra spark, and Java 17 or newer. Commands run on this machine's cores
    unless --master names a cluster, whose executors have the package, too.
    """
