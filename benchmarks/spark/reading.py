"""Reads of all columns, of the value alone, and counts: MB of values a second of Spark's CPU.

The same rows lie in a topic of ours, in one of Kafka, and in Parquet files (zstd), in four
partitions or files each. `store`: executors read the objects, `service`: everything comes through
the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.report import Row
from benchmarks.spark.meter import (
    Cost,
    cpu_s,
    ratio,
    ratio_with_servers,
    ratios,
    server_cpu_s,
    wall_s,
)
from benchmarks.spark.rows import write_seed
from benchmarks.spark.world import World, deliver

BYTES = 256 << 20
"""Bytes of values at scale 1."""
NAME = "read"


@dataclass(frozen=True, slots=True)
class Data:
    """One topic, in all places."""

    topic: str
    parquet: str
    record_bytes: int
    count: int


def run(world: World) -> None:
    for record_bytes in (100, 1024):
        for compression in ("none", "zstd"):
            data = fill(world, record_bytes, compression)
            _all_columns(world, data)
            if compression == "none":
                _value_alone(world, data)
                if record_bytes == 100:
                    _counts(world, data)


def fill(world: World, record_bytes: int, compression: str) -> Data:
    count = max(4000, int(BYTES * world.scale) // record_bytes)
    count -= count % 4
    name = f"read-{record_bytes}-{compression}"
    seed = write_seed(world.folder / f"{name}-seed", record_bytes, count)
    rows = world.spark.read.parquet(seed)
    world.make_topic(name)
    world.write(rows, name, compression)
    if world.kafka is not None:
        world.write_kafka(rows, name, compression)
    parquet = str(world.folder / f"{name}-parquet")
    written = world.read(name, "store")
    written.write.option("compression", "zstd").parquet(parquet)
    data = Data(name, parquet, record_bytes, count)
    for place, frame in _frames(world, data).items():
        found = frame().count()
        if found != count:
            raise AssertionError(f"{place} has {found} of {count} rows of {name}")
    return data


def _frames(world: World, data: Data) -> dict[str, Callable[[], object]]:
    """Queries by source; each makes a new frame, so that planning is measured, too."""
    found: dict[str, Callable[[], object]] = {
        "store": lambda: world.read(data.topic, "store"),
        "service": lambda: world.read(data.topic, "service"),
        "Parquet": lambda: world.spark.read.parquet(data.parquet),
    }
    if world.kafka is not None:
        found["Kafka source"] = lambda: world.read_kafka(data.topic)
    return found


def _all_columns(world: World, data: Data) -> None:
    cases = {
        place: (lambda frame=frame: deliver(frame()))
        for place, frame in _frames(world, data).items()
    }
    _report(world, data, f"{data.topic.removeprefix('read-')}", cases, aim=1.0)


def _value_alone(world: World, data: Data) -> None:
    frames = _frames(world, data)
    cases: dict[str, Callable[[], object]] = {
        mode: (lambda mode=mode: deliver(world.read(data.topic, mode, "value BINARY")))
        for mode in ("store", "service")
    }
    for place in frames.keys() - cases.keys():
        cases[place] = lambda frame=frames[place]: deliver(frame().select("value"))
    _report(world, data, f"{data.record_bytes} value alone", cases, aim=1.0)


def _counts(world: World, data: Data) -> None:
    cases: dict[str, Callable[[], object]] = {
        place: (lambda frame=frame: frame().count())
        for place, frame in _frames(world, data).items()
    }
    for mode in ("store", "service"):
        cases[f"{mode} .schema(offset)"] = lambda mode=mode: world.read(
            data.topic, mode, "offset BIGINT"
        ).count()
    _report(world, data, f"{data.record_bytes} count(*)", cases, aim=None)


def _report(
    world: World,
    data: Data,
    label: str,
    cases: dict[str, Callable[[], object]],
    *,
    aim: float | None,
) -> None:
    costs = world.meter.in_turns(cases)
    kafka = costs.get("Kafka source")
    size = data.count * data.record_bytes
    for place, found in costs.items():
        row = Row(NAME, f"{label}: {place}", size / cpu_s(found) / 1e6, "MB/s/core")
        row.facts = _facts(data, found, size)
        if place not in ("Parquet", "Kafka source"):
            row.facts["of_parquet"] = ratio(costs["Parquet"], found)
            if kafka is not None:
                row.floor, row.floor_name = size / cpu_s(kafka) / 1e6, "Kafka source"
                row.ratios = ratios(kafka, found)
                row.aim = aim
                row.facts["wall_of_kafka"] = ratio(kafka, found, wall=True)
                row.facts["with_servers_of_kafka"] = ratio_with_servers(kafka, found)
        world.report.add(row)


def _facts(data: Data, found: list[Cost], size: int) -> dict[str, float]:
    return {
        "mrec_s_core": data.count / cpu_s(found) / 1e6,
        "mrec_s": data.count / wall_s(found) / 1e6,
        "mb_s": size / wall_s(found) / 1e6,
        "server_cpu_s_per_gib": server_cpu_s(found) / size * (1 << 30),
    }
