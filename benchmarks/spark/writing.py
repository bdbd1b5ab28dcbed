"""The same rows to our sink, to Kafka's (acks=all) and to Parquet (zstd): MB of values a second.

Ours is durable, and visible all at once, when it returns; Kafka has it in the page cache of one
machine; Parquet is renamed into place.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.report import Row
from benchmarks.spark.meter import (
    ROUNDS,
    WARM_UPS,
    cpu_s,
    ratio,
    ratio_with_servers,
    ratios,
    server_cpu_s,
    wall_s,
)
from benchmarks.spark.rows import write_seed
from benchmarks.spark.world import World

BYTES = 128 << 20
"""Bytes of values at scale 1."""
NAME = "write"


def run(world: World) -> None:
    for record_bytes in (100, 1024):
        count = max(4000, int(BYTES * world.scale) // record_bytes)
        count -= count % 4
        seed = write_seed(world.folder / f"write-{record_bytes}-seed", record_bytes, count)
        for compression in ("none", "zstd"):
            _case(world, seed, record_bytes, count, compression)


def _case(world: World, seed: str, record_bytes: int, count: int, compression: str) -> None:
    rows = world.spark.read.parquet(seed)
    label = f"{record_bytes}-{compression}"
    names = [f"write-{label}-{number}" for number in range(WARM_UPS + ROUNDS)]
    for name in names:
        world.make_topic(name)
    ours, theirs, files = iter(names), iter(names), iter(names)

    cases: dict[str, Callable[[], object]] = {
        "streamlog": lambda: world.write(rows, next(ours), compression),
        "Parquet": lambda: rows.write.option("compression", compression).parquet(
            str(world.folder / next(files))
        ),
    }
    if world.kafka is not None:
        cases["Kafka sink"] = lambda: world.write_kafka(rows, next(theirs), compression)
    costs = world.meter.in_turns(cases)
    size = count * record_bytes
    kafka = costs.get("Kafka sink")
    for place, found in costs.items():
        row = Row(NAME, f"{label}: {place}", size / wall_s(found) / 1e6, "MB/s")
        row.facts = {
            "mrec_s": count / wall_s(found) / 1e6,
            "mb_s_core": size / cpu_s(found) / 1e6,
            "server_cpu_s_per_gib": server_cpu_s(found) / size * (1 << 30),
        }
        if place == "streamlog":
            row.facts["of_parquet"] = ratio(costs["Parquet"], found, wall=True)
            if kafka is not None:
                row.floor, row.floor_name = size / wall_s(kafka) / 1e6, "Kafka sink"
                row.ratios = ratios(kafka, found, wall=True)
                row.facts["cpu_of_kafka"] = ratio(kafka, found)
                row.facts["with_servers_of_kafka"] = ratio_with_servers(kafka, found)
        world.report.add(row)
