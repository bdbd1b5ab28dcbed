"""Store and metadata go away under Kafka's clients, come back, and all goes on by itself.

The short form of `make outage-kafka`: seconds in place of minutes, with time-outs to match, and
without the JVM, whose start takes longer than all the rest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.kafka.protocol.errors import KafkaError
from tests.kafka_clients.outages.checks import check
from tests.kafka_clients.outages.codes import unexpected
from tests.kafka_clients.outages.report import report
from tests.kafka_clients.outages.run import SHORT_PACE, Fault, Outcome, Plan, run

CLIENTS = "librdkafka", "aiokafka", "franz-go"
FAULTS = [Fault("store-refuses", 4.0), Fault("metadata-fails", 1.0)]
PATIENCE_S = 60.0


@pytest.mark.slow
def test_kafkas_clients_go_on_by_themselves_after_an_outage(tmp_path: Path) -> None:
    plan = Plan("object", FAULTS, SHORT_PACE, 10, PATIENCE_S, CLIENTS, late_at=0.75)
    outcome = run(plan, tmp_path)
    print(report(outcome))
    check(outcome, may_give_up=False)
    assert unexpected(outcome) == {}
    check_that_it_was_away(outcome)


def check_that_it_was_away(outcome: Outcome) -> None:
    """What the node said, and what its clients heard: without it nothing above means anything."""
    for phase in outcome.phases[1::2]:
        reasons = [
            one.reason
            for one in outcome.health
            if phase.begins_at <= one.at < phase.ends_at and not one.is_ready
        ]
        alarm = "metadata_unavailable" if "metadata" in phase.name else "store_unavailable"
        assert any(alarm in reason for reason in reasons), (phase.name, reasons)
    # The answer may come when the store is back.
    during, after = (phase.exchanged for phase in outcome.phases[1:3])
    heard = {one.error for phase in (during, after) for seen in phase.values() for one in seen}
    assert KafkaError.REQUEST_TIMED_OUT in heard
