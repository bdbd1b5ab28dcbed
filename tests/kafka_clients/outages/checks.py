"""What must hold after a run: what clients were told against what the log has.

1. Each acknowledged record is there, at its offset, and every record once.
2. A record that its client gave up is there once at most. Other records of that writer may be there
   again, under another epoch of their producer: librdkafka gives a producer the next epoch when one
   of its records is too old, and sends all again whose answers it does not have (librdkafka's issue
   4953); a broker cannot know them from new ones.
3. Records of one epoch stand in the order in which they were written.
4. Each reader has read every record once, in order.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.kafka_clients.outages.clients import Client, Place
from tests.kafka_clients.outages.programs.telling import PARTITIONS
from tests.kafka_clients.outages.run import READERS, Outcome
from tests.kafka_clients.outages.stored import StoredRecord

UNKNOWN_OFFSET = -1
Stored = Mapping[Place, StoredRecord]


def check(outcome: Outcome, *, may_give_up: bool) -> None:
    """`may_give_up`: whether a client's own time for a record may have been over."""
    assert not outcome.stuck, outcome.stuck
    assert outcome.tap_failures == []
    wrong = [
        f"{client.name}: {problem}"
        for client in outcome.clients.values()
        for problem in problems(client, of_client(client, outcome.stored), may_give_up)
    ]
    assert wrong == [], "\n".join(wrong)


def of_client(client: Client, stored: Stored) -> Stored:
    topics = client.topic, f"{client.topic}-late"
    return {place: record for place, record in stored.items() if place.topic in topics}


def problems(client: Client, stored: Stored, may_give_up: bool) -> list[str]:
    failed = {one.value for every in client.failed.values() for one in every}
    places: dict[str, list[Place]] = {}
    for place, record in stored.items():
        places.setdefault(record.value, []).append(place)
    found = [f"said {line!r}" for line in client.unknown[:3]]
    if failed and not may_give_up:
        found.append(f"gave up {sorted(failed)[:5]}")
    for value, place in client.acked.items():
        if value not in places or (place.offset != UNKNOWN_OFFSET and place not in places[value]):
            found.append(f"was promised {value} at {place}")
    for value, copies in places.items():
        epochs = {stored[place].producer for place in copies}
        is_own_doing = may_give_up and _gave_up(client, value) and len(epochs) == len(copies)
        if len(copies) > 1 and not is_own_doing:
            found.append(f"{value} is stored at {copies}")
    unexplained = set(places) - set(client.acked) - failed
    found += [f"{value} was neither acknowledged nor given up" for value in sorted(unexplained)[:5]]
    return [*found, *_out_of_order(client, stored), *_misread(client, stored)][:20]


def sent_again(client: Client, stored: Stored) -> int:
    """How many of the client's records are there more than once."""
    mine = of_client(client, stored)
    return len(mine) - len({record.value for record in mine.values()})


def _gave_up(client: Client, value: str) -> bool:
    return bool(client.failed.get(value.rpartition("-")[0]))


def _out_of_order(client: Client, stored: Stored) -> list[str]:
    last: dict[object, int] = {}
    found = []
    for place, record in sorted(stored.items()):
        key = place.topic, place.partition, record.producer
        number = int(record.value.rpartition("-")[2])
        if number < last.get(key, -1):
            found.append(f"{record.value} stands at {place}, behind {last[key]}")
        last[key] = number
    return found


def _misread(client: Client, stored: Stored) -> list[str]:
    found = []
    for role in READERS:
        for partition in range(PARTITIONS):
            wanted = [
                (place, record.value)
                for place, record in sorted(stored.items())
                if place[:2] == (client.topic, partition)
            ]
            read = client.read.get(role, [])
            seen = [(place, value) for place, value in read if place.partition == partition]
            if seen != wanted:
                found.append(f"{role} read {len(seen)} of {len(wanted)} records of {partition}")
    return found
