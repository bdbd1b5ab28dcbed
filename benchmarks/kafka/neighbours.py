"""What a topic of one kind costs a topic of the other: more than one of its own kind would?

One client loads a topic without a pause, and leaves so few batches unanswered that what they wait
for decides its rate, and not how much the disk takes. Beside it two neighbours, one of each kind,
have a steady load in slots that they take in turns. Its rate in a slot of the one is compared with
that in the slot of the other next to it: what the disk and the machine do besides changes within
seconds, so whole turns one after the other tell a tenth, and not 3 %.

Both neighbours have the same load. All batches are encoded beforehand, so that the clients leave
the cores to the node.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import cycle
from statistics import median, stdev
from typing import NamedTuple

from benchmarks.kafka.bench import Bench
from benchmarks.kafka.neighbour import SLOT_S, neighbour, whose
from benchmarks.kafka.servers import PARTITIONS, Server
from benchmarks.kafka.wire import KafkaConnection, produce_frame
from benchmarks.produce import RECORD_BYTES, example_values
from benchmarks.report import Row, percentile
from streamlog.codec.records import encode_values

BATCH_BYTES = 128 << 10
UNANSWERED = 2
MB_S = 16.0
"""Of a neighbour, in its slots."""
SLOTS = 160
"""For each kind, at a scale of a half or more."""
SLOTS_LEAST = 8
BEGINS_IN_S = 0.5
SETTLING_S = 0.06
"""Of a slot, in which what the one before left is still under way: not counted."""


class Slot(NamedTuple):
    mb_s: float
    p50_ms: float


def run(bench: Bench, kinds: Mapping[str, tuple[Server, str]]) -> None:
    """`kinds`: by name two of them: the node that makes such topics, the aim that these meet."""
    for of in kinds:
        _measured(bench, kinds, of)


def _measured(bench: Bench, kinds: Mapping[str, tuple[Server, str]], of: str) -> None:
    server, aim = kinds[of]
    names = sorted(kinds, key=of.__ne__)  # Its own kind comes first.
    slots = max(SLOTS_LEAST, int(SLOTS * min(1.0, bench.scale * 2)))
    topic = server.new_topic("neighbours")
    with ExitStack() as stack:
        server.wait_until_idle()
        others = []
        for which, name in enumerate(names):
            node = kinds[name][0]
            loading = neighbour(node.address, node.new_topic("beside"), BATCH_BYTES, MB_S, which)
            others.append(stack.enter_context(loading))
        began = time.perf_counter() + BEGINS_IN_S
        for one in others:
            one.begin(began)
        found = _loaded(server, topic, began, slots)
    with KafkaConnection(server.address) as connection:
        # It has gigabytes, which the disk has to have room for once.
        connection.delete_topic(topic)
    for which, name in enumerate(names):
        own = [slot for number, slot in enumerate(found) if whose(number) == which and slot.mb_s]
        row = Row("kinds", f"{of} topic beside a {name} one", median(s.mb_s for s in own), "MB/s")
        row.facts = {
            "p50_ms": median(slot.p50_ms for slot in own),
            "neighbour_mb_s": others[which].figures["mb_s"],
            "neighbour_p50_ms": others[which].figures["p50_ms"],
        }
        bench.report.add(row)
    pairs = [
        (found[n], found[n + 1]) if whose(n) == 0 else (found[n + 1], found[n])
        for n in range(0, slots - 1, 2)
        if found[n].mb_s and found[n + 1].mb_s  # Else the disk stood still for all of a slot.
    ]
    rates = [other.mb_s / own.mb_s for own, other in pairs]
    facts = {
        "standard_error": 1.25 * stdev(rates) / len(rates) ** 0.5,
        "p50_ms_by_own_kind": median(other.p50_ms / own.p50_ms for own, other in pairs),
    }
    bench.meet(aim, rates, facts)


def _loaded(server: Server, topic: str, began: float, slots: int) -> list[Slot]:
    """What the topic's client sees in each slot."""
    answered: list[float] = []
    ends = began + slots * SLOT_S
    values = example_values(BATCH_BYTES)[: BATCH_BYTES // (RECORD_BYTES + 16)]
    batch = encode_values(values, timestamp_ms=int(time.time() * 1000)).data

    def frames() -> Iterator[bytes]:
        made = [produce_frame(topic, number, bytes(batch), number) for number in range(PARTITIONS)]
        for frame in cycle(made):
            if time.perf_counter() > ends:
                return
            yield frame

    with KafkaConnection(server.address) as connection:
        latencies = connection.blast(frames(), UNANSWERED, answered=answered)
    found = []
    for number in range(slots):
        first, last = began + number * SLOT_S + SETTLING_S, began + (number + 1) * SLOT_S
        waits = [ms for at, ms in zip(answered, latencies, strict=True) if first <= at < last]
        rate = len(waits) * len(batch) / (last - first) / 1e6
        found.append(Slot(rate, percentile(waits, 0.5) if waits else float("nan")))
    return found
