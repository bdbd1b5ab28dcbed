"""What idempotence and transactions cost by plain produce, with two clients, here and in Kafka.

1. `Transacting.java`: Kafka's own client, one producer over all partitions, and several, two to a
   partition. A commit waits for all records of its transaction and for two round trips; while one
   producer waits, the other one of its partition sends. So several show what a transaction costs,
   and one how long it waits. The aims are of several.
2. librdkafka, one producer: an idempotent one has one batch of a partition under way, and its
   threads wake up busily. That costs it a third to a half with every server, the bare one included.

All kinds take turns in each round, forwards and backwards; a cost is of one round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median

from benchmarks.kafka import librdkafka, transacting
from benchmarks.kafka.bench import Bench
from benchmarks.kafka.java_producers import JavaProducers, java_producers
from benchmarks.kafka.librdkafka import Figures
from benchmarks.kafka.servers import BARE, KAFKA, NODE, PARTITIONS, Server
from benchmarks.kafka.transacting import IDEMPOTENT, PLAIN, TRANSACTION_RECORDS, TRANSACTIONAL
from benchmarks.produce import GIB
from benchmarks.report import Row
from streamlog.errors import Unavailable

GROUP = "transactions"
WARM_ROUNDS = 2
KINDS = (PLAIN, IDEMPOTENT, TRANSACTIONAL)
COSTS = {IDEMPOTENT: "idempotence", TRANSACTIONAL: "transactions"}
PRODUCERS = 2 * PARTITIONS
LIBRDKAFKA, ONE, SEVERAL = "librdkafka", "1 Java producer", f"{PRODUCERS} Java producers"
RECORDS = {ONE: 128_000, SEVERAL: 192_000, LIBRDKAFKA: 200_000}
"""Of a round at scale 1, of all producers together, for each kind."""
ROUNDS = {ONE: 3, SEVERAL: 7, LIBRDKAFKA: 3}

Write = Callable[[Server, str, str, int], Figures]
"""(server, topic, kind, records): what `JavaProducers.write` returns, and `server_cpu_s`."""
Found = dict[tuple[str, str], list[Figures]]
"""By (server, kind), one of each round."""
Costs = dict[tuple[str, str], list[float]]
"""By (server, kind): per cent less MB/s than plain produce of the same round."""


def run(bench: Bench) -> None:
    costs: dict[str, Costs] = {}
    servers = [bench.servers[name] for name in (NODE, KAFKA) if name in bench.servers]
    with ExitStack() as stack:
        try:
            java = stack.enter_context(java_producers())
        except (Unavailable, OSError) as error:
            bench.report.note(f"transactions of Java producers are left out: {error}")
        else:
            bench.attempt(GROUP, "Java, warm-up", lambda: _warm_up(bench, servers, java))
            for client, producers in ((ONE, 1), (SEVERAL, PRODUCERS)):
                write = partial(_by_java, java, producers)
                _attempt(bench, costs, servers, client, write)
    if librdkafka.is_there():
        # The bare server shows what the client alone costs itself.
        with_bare = [bench.servers[BARE], *servers]
        _attempt(bench, costs, with_bare, LIBRDKAFKA, _by_librdkafka)
    else:
        bench.report.note("transactions of librdkafka are left out: it is not installed")
    _meet(bench, costs)


def _attempt(
    bench: Bench, costs: dict[str, Costs], servers: Sequence[Server], client: str, write: Write
) -> None:
    def work() -> None:
        costs[client] = _measured(bench, servers, client, write)

    bench.attempt(GROUP, f"{client}, costs", work)


def _by_java(
    java: JavaProducers, producers: int, server: Server, topic: str, kind: str, records: int
) -> Figures:
    java.open(server.address, topic, kind, producers)
    server.wait_until_idle()
    cpu = server.cpu_s()
    done = java.write(max(TRANSACTION_RECORDS, records // producers))
    return {**done, "server_cpu_s": server.cpu_s() - cpu}


def _by_librdkafka(server: Server, topic: str, kind: str, records: int) -> Figures:
    cpu = server.cpu_s()
    done = transacting.write(server.address, topic, kind, records)
    return {**done, "server_cpu_s": server.cpu_s() - cpu}


def _warm_up(bench: Bench, servers: Sequence[Server], java: JavaProducers) -> None:
    """So that neither the client's code nor Kafka's is compiled while it is measured."""
    records = _records(bench, ONE)
    for _ in bench.rounds(WARM_ROUNDS):
        for kind in KINDS:
            for server in servers:
                _by_java(java, PRODUCERS, server, server.new_topic("txn-warm"), kind, records)


def _records(bench: Bench, client: str) -> int:
    return max(TRANSACTION_RECORDS, int(RECORDS[client] * bench.scale))


def _measured(bench: Bench, servers: Sequence[Server], client: str, write: Write) -> Costs:
    """A row for each kind and server, and one for each cost."""
    found: Found = {}
    for number in bench.rounds(ROUNDS[client]):
        for kind in KINDS if number % 2 == 0 else reversed(KINDS):
            for server in servers:
                if server.name == BARE and kind == TRANSACTIONAL:
                    continue
                topic = server.new_topic(f"txn-{kind}")
                server.wait_until_idle()
                done = write(server, topic, kind, _records(bench, client))
                found.setdefault((server.name, kind), []).append(done)
    for kind in KINDS:
        for server in servers:
            if (server.name, kind) in found:
                bench.report.add(_row(f"{client}, {server.name}, {kind}", found[server.name, kind]))
    costs: Costs = {}
    for (name, kind), rounds in found.items():
        if kind != PLAIN:
            costs[name, kind] = _costs(rounds, found[name, PLAIN])
            case = f"{client}, {name}, cost of {COSTS[kind]} by plain"
            row = Row(GROUP, case, median(costs[name, kind]), "%", less_is_better=True)
            row.facts = {
                "least": min(costs[name, kind]),
                "most": max(costs[name, kind]),
                **_more_cpu(rounds, found[name, PLAIN]),
            }
            bench.report.add(row)
    return costs


def _row(case: str, rounds: Sequence[Figures]) -> Row:
    row = Row(GROUP, case, median(map(_mb_s, rounds)), "MB/s")
    row.facts = {
        "server_cpu_s_per_gib": median(map(_cpu_s_per_gib, rounds)),
        "client_cpu_s_per_gib": median(one["cpu_s"] / one["bytes"] * GIB for one in rounds),
    }
    return row


def _mb_s(one: Figures) -> float:
    return one["bytes"] / one["seconds"] / 1e6


def _cpu_s_per_gib(one: Figures) -> float:
    return one["server_cpu_s"] / one["bytes"] * GIB


def _costs(rounds: Sequence[Figures], plain: Sequence[Figures]) -> list[float]:
    return [(1 - _mb_s(a) / _mb_s(b)) * 100 for a, b in zip(rounds, plain, strict=True)]


def _more_cpu(rounds: Sequence[Figures], plain: Sequence[Figures]) -> Figures:
    """Per cent of plain produce's CPU seconds a byte that come on top, over all rounds; nothing
    where those are too few to be counted."""
    ours, theirs = (
        sum(one["server_cpu_s"] for one in found) / sum(one["bytes"] for one in found)
        for found in (rounds, plain)
    )
    return {"more_server_cpu_percent": (ours / theirs - 1) * 100} if theirs else {}


def _meet(bench: Bench, costs: Mapping[str, Costs]) -> None:
    """The aims are of several Java producers; what else was measured stands beside them."""
    if SEVERAL not in costs:
        return
    beside = {
        "Kafka": (SEVERAL, KAFKA),
        "one_producer": (ONE, NODE),
        "Kafka_one_producer": (ONE, KAFKA),
        "librdkafka": (LIBRDKAFKA, NODE),
    }
    for kind, what in COSTS.items():
        facts = {
            name: median(found)
            for name, (client, server) in beside.items()
            if (found := costs.get(client, {}).get((server, kind)))
        }
        bench.meet(f"cost of {what}", costs[SEVERAL][NODE, kind], facts)
