"""Which codes a node may answer with while something is away, by API: those that clients repeat.

docs/kafka.md, "What clients see of faults", says what each client does then.
"""

from __future__ import annotations

from streamlog.kafka.protocol.errors import KafkaError
from tests.kafka_clients.outages.run import Outcome
from tests.kafka_clients.wire import APIS

NONE = {KafkaError.NONE}
STORAGE = {KafkaError.KAFKA_STORAGE_ERROR, KafkaError.NOT_LEADER_OR_FOLLOWER}
"""Nothing was done."""
TIMED_OUT = {KafkaError.REQUEST_TIMED_OUT}
"""It may have been done."""
CONTROLLER = {KafkaError.NOT_CONTROLLER}

ALLOWED = {
    # 35: clients that know newer versions ask with those first.
    "api_versions": NONE | {KafkaError.UNSUPPORTED_VERSION},
    # 45: a batch behind one that was refused; its client sends both again, in order.
    "produce": STORAGE | TIMED_OUT | {KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER},
    # 74: of a partition whose log was opened behind the consumer's last look at the metadata.
    # 70, 71: a fetch session that is made anew.
    "fetch": STORAGE
    | {
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
    },
    "list_offsets": STORAGE | {KafkaError.OFFSET_NOT_AVAILABLE},
    "metadata": NONE,
    # There are no groups: librdkafka asks for one's coordinator even if it only assigns partitions.
    "find_coordinator": {KafkaError.COORDINATOR_NOT_AVAILABLE},
    "init_producer_id": {KafkaError.COORDINATOR_LOAD_IN_PROGRESS},
    # 36: a client's second try, of a creation that was under way when its first time was up.
    "create_topics": CONTROLLER | TIMED_OUT | {KafkaError.TOPIC_ALREADY_EXISTS},
    "delete_records": STORAGE | TIMED_OUT,
    "describe_configs": NONE,
    "alter_configs": STORAGE | TIMED_OUT,
    "incremental_alter_configs": STORAGE | TIMED_OUT,
}


def unexpected(outcome: Outcome) -> dict[str, set[str]]:
    """By client, the codes of faults' phases that are in no table."""
    found: dict[str, set[str]] = {}
    for phase in outcome.phases:
        for client, exchanged in phase.exchanged.items():
            for exchange in exchanged:
                api = APIS.get(exchange.api, str(exchange.api))
                if exchange.error and exchange.error not in ALLOWED.get(api, set()):
                    found.setdefault(client, set()).add(f"{phase.name}: {exchange}")
    return found
