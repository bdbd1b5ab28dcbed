"""What a commit of the sink costs: by the node, and by a transaction, of the same staged objects.

ms from the driver's call to its return, of objects with one small batch in each partition; the
transaction is shown in all partitions by then. Beside it what a new driver's producer id costs.
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks.report import Row
from benchmarks.spark.world import World
from streamlog.client import Admin, StagedWriter, TransactionalStagedWriter
from streamlog.codec.records import BatchBuilder

NAME = "commits"
PARTITIONS = (1, 8, 64)
ROUNDS = 60
"""At scale 1."""


def run(world: World) -> None:
    rounds = max(10, int(ROUNDS * world.scale))
    server = world.node.server
    for count in PARTITIONS:
        topic = f"commits-{count}"
        with Admin(server) as admin:
            admin.create_topic(topic, count)
        with (
            StagedWriter(server, f"{topic}-node") as by_node,
            TransactionalStagedWriter(server, f"{topic}-transaction") as by_transaction,
        ):
            by_transaction.initialise()
            node_ms: list[float] = []
            transaction_ms: list[float] = []
            for epoch in range(rounds):
                node_ms.append(_commit_ms(by_node, topic, count, epoch))
                transaction_ms.append(_commit_ms(by_transaction, topic, count, epoch))
        partitions = f"{count} partition" + "s" * (count > 1)
        node = Row(NAME, f"{partitions}: node", median(node_ms), "ms", less_is_better=True)
        world.report.add(node)
        row = Row(NAME, f"{partitions}: transaction", median(transaction_ms), "ms")
        row.less_is_better = True
        row.floor, row.floor_name = node.value, "by the node"
        row.facts = {"p90_ms": sorted(transaction_ms)[int(rounds * 0.9)]}
        world.report.add(row)
    initialising = [_initialise_ms(server) for _ in range(rounds)]
    world.report.add(
        Row(NAME, "a driver's producer id", median(initialising), "ms", less_is_better=True)
    )


def _commit_ms(writer: StagedWriter, topic: str, partitions: int, epoch: int) -> float:
    builder = BatchBuilder(1 << 20)
    builder.extend([b"x" * 100], timestamp_ms=1_700_000_000_000)
    batch = bytes(builder.build())
    objects = writer.stage(str(epoch), {(topic, n): batch for n in range(partitions)})
    began = time.perf_counter()
    committed = writer.commit(epoch, objects)
    taken_ms = (time.perf_counter() - began) * 1000
    if committed.was_committed or len(committed.parts) != partitions:
        raise AssertionError(f"epoch {epoch} of {topic} was not committed by its call: {committed}")
    return taken_ms


def _initialise_ms(server: str) -> float:
    with TransactionalStagedWriter(server, "commits-drivers") as writer:
        began = time.perf_counter()
        writer.initialise()
        return (time.perf_counter() - began) * 1000
