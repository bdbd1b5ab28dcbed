"""What idempotence and transactions cost by plain produce, with two clients, here and in Kafka.

1. `Transacting.java`: Kafka's own client, one producer over all partitions, and several, two to a
   partition. A commit waits for all records of its transaction and for two round trips; while one
   producer waits, the other one of its partition sends. So several show what a transaction costs,
   and one how long it waits. The aims are of several.
2. librdkafka, one producer: an idempotent one has one batch of a partition under way, and its
   threads wake up busily. That costs it a third to a half with every server, the bare one included.

All kinds take turns in each round, forwards and backwards; a cost is of one turn of each next to
one another. Java's producers of all kinds stay connected and take many short turns: what the disk
and the machine do besides changes the rate by a fifth within seconds, so a few long ones could not
tell 3 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from statistics import median, stdev

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
WARM_TURNS = 2
KINDS = (PLAIN, IDEMPOTENT, TRANSACTIONAL)
COSTS = {IDEMPOTENT: "idempotence", TRANSACTIONAL: "transactions"}
PRODUCERS = 2 * PARTITIONS
LIBRDKAFKA, ONE, SEVERAL = "librdkafka", "1 Java producer", f"{PRODUCERS} Java producers"
RECORDS = {ONE: 64_000, SEVERAL: 256_000, LIBRDKAFKA: 200_000}
"""Of a turn at scale 1, of all producers together."""
ROUNDS = {ONE: 3, SEVERAL: 4, LIBRDKAFKA: 3}
TURNS = {ONE: 4, SEVERAL: 8, LIBRDKAFKA: 1}
"""Of each kind in a round."""

Write = Callable[[str, int], Figures]
"""(kind, records): what `JavaProducers.write` returns, and `server_cpu_s`."""
Open = Callable[[Server], AbstractContextManager[Write]]
"""Producers of all kinds, or what starts them."""
Found = dict[tuple[str, str], list[Figures]]
"""By (server, kind), one of each turn."""
Costs = dict[tuple[str, str], list[float]]
"""By (server, kind): per cent less MB/s than plain produce next to it."""


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
                opened = partial(_java, java, producers)
                _attempt(bench, costs, servers, client, opened)
    if librdkafka.is_there():
        # The bare server shows what the client alone costs itself.
        with_bare = [bench.servers[BARE], *servers]
        _attempt(bench, costs, with_bare, LIBRDKAFKA, _librdkafka)
    else:
        bench.report.note("transactions of librdkafka are left out: it is not installed")
    _meet(bench, costs)


def _attempt(
    bench: Bench, costs: dict[str, Costs], servers: Sequence[Server], client: str, opened: Open
) -> None:
    def work() -> None:
        costs[client] = _measured(bench, servers, client, opened)

    bench.attempt(GROUP, f"{client}, costs", work)


@contextmanager
def _java(java: JavaProducers, producers: int, server: Server) -> Iterator[Write]:
    def write(kind: str, records: int) -> Figures:
        cpu = server.cpu_s()
        done = java.write(kind, max(TRANSACTION_RECORDS, records // producers))
        return {**done, "server_cpu_s": server.cpu_s() - cpu}

    try:
        for kind in _kinds_for(server):
            java.open(server.address, server.new_topic(f"txn-{kind}"), kind, producers)
        server.wait_until_idle()
        yield write
    finally:
        java.close()


@contextmanager
def _librdkafka(server: Server) -> Iterator[Write]:
    def write(kind: str, records: int) -> Figures:
        topic = server.new_topic(f"txn-{kind}")
        server.wait_until_idle()
        cpu = server.cpu_s()
        done = transacting.write(server.address, topic, kind, records)
        return {**done, "server_cpu_s": server.cpu_s() - cpu}

    yield write


def _kinds_for(server: Server) -> Sequence[str]:
    return KINDS[:2] if server.name == BARE else KINDS


def _warm_up(bench: Bench, servers: Sequence[Server], java: JavaProducers) -> None:
    """So that neither the client's code nor Kafka's is compiled while it is measured."""
    for server in servers:
        with _java(java, PRODUCERS, server) as write:
            for _ in range(WARM_TURNS):
                for kind in KINDS:
                    write(kind, _records(bench, SEVERAL))


def _records(bench: Bench, client: str) -> int:
    return max(TRANSACTION_RECORDS, int(RECORDS[client] * bench.scale))


def _measured(bench: Bench, servers: Sequence[Server], client: str, opened: Open) -> Costs:
    """A row for each kind and server, and one for each cost."""
    found: Found = {}
    for _ in bench.rounds(ROUNDS[client]):
        for server in servers:
            with opened(server) as write:
                for turn in range(TURNS[client]):
                    kinds = _kinds_for(server)
                    for kind in kinds if turn % 2 == 0 else reversed(kinds):
                        done = write(kind, _records(bench, client))
                        found.setdefault((server.name, kind), []).append(done)
    for kind in KINDS:
        for server in servers:
            if (server.name, kind) in found:
                bench.report.add(_row(f"{client}, {server.name}, {kind}", found[server.name, kind]))
    costs: Costs = {}
    for (name, kind), turns in found.items():
        if kind != PLAIN:
            costs[name, kind] = _costs(turns, found[name, PLAIN])
            case = f"{client}, {name}, cost of {COSTS[kind]} by plain"
            row = Row(GROUP, case, median(costs[name, kind]), "%", less_is_better=True)
            row.facts = {
                "least": min(costs[name, kind]),
                "most": max(costs[name, kind]),
                **_standard_error(costs[name, kind]),
                **_more_cpu(turns, found[name, PLAIN]),
            }
            bench.report.add(row)
    return costs


def _row(case: str, turns: Sequence[Figures]) -> Row:
    row = Row(GROUP, case, median(map(_mb_s, turns)), "MB/s")
    row.facts = {
        "server_cpu_s_per_gib": _per_gib(turns, "server_cpu_s"),
        "client_cpu_s_per_gib": _per_gib(turns, "cpu_s"),
    }
    return row


def _mb_s(one: Figures) -> float:
    return one["bytes"] / one["seconds"] / 1e6


def _per_gib(turns: Sequence[Figures], cpu: str) -> float:
    """Of all turns: a server's CPU time is known by the hundredth of a second."""
    return sum(one[cpu] for one in turns) / sum(one["bytes"] for one in turns) * GIB


def _costs(turns: Sequence[Figures], plain: Sequence[Figures]) -> list[float]:
    return [(1 - _mb_s(a) / _mb_s(b)) * 100 for a, b in zip(turns, plain, strict=True)]


def _standard_error(costs: Sequence[float]) -> Figures:
    """Of their median."""
    if len(costs) < 2:
        return {}
    return {"standard_error": 1.25 * stdev(costs) / len(costs) ** 0.5}


def _more_cpu(turns: Sequence[Figures], plain: Sequence[Figures]) -> Figures:
    """Per cent of plain produce's CPU seconds a byte that come on top, over all turns; nothing
    where those are too few to be counted."""
    ours, theirs = (_per_gib(found, "server_cpu_s") for found in (turns, plain))
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
