"""What a restored topic sets so that no node deletes what the bucket's newer settings keep. Pure.

A backup is older than the settings that the topic's meta stream tells of. Nobody can tell which of
the two the owner wants, but what a node deletes is gone, and what it keeps can be deleted later. So
of each setting that deletes the value counts that deletes less. Of `cleanup.policy` that is what
all have in common; where they have nothing in common, `delete` without a limit, which keeps
everything.

`local.retention.*` is left out: topics of the default kind, which alone are restored, have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from streamlog.log.api import topic_config
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.partition.retention import UNLIMITED

LIMITS = ("retention.bytes", "retention.ms")
POLICY = "cleanup.policy"


def deleting_less(
    given: Mapping[str, str], found: Mapping[str, str], defaults: Sequence[TopicConfig]
) -> dict[str, str]:
    """The settings that have to change in `given`, and their values; empty where none has.

    `found`: the settings of the topic's meta stream, which has all that differ from Kafka's
    defaults. `defaults`: what a node may have for topics that set nothing. Errors: InvalidConfig.
    """
    newer = topic_config.parse(found, is_stored=True)
    older = [topic_config.parse(given, one, is_stored=True) for one in defaults]
    changed: dict[str, str] = {}
    for name in LIMITS:
        if _limit(newer, name) > min(_limit(one, name) for one in older):
            most = max([newer, *older], key=lambda config: _limit(config, name))
            changed[name] = topic_config.value_of(most, name)
    common = _policies(newer).intersection(*map(_policies, older))
    if any(_policies(one) != common for one in older):
        changed[POLICY] = ",".join(sorted(common)) or "delete"
        if not common:
            changed |= dict.fromkeys(LIMITS, str(UNLIMITED))
    return changed


def _limit(config: TopicConfig, name: str) -> float:
    number = int(topic_config.value_of(config, name))
    return inf if number == UNLIMITED else number


def _policies(config: TopicConfig) -> set[str]:
    has = {"compact": config.is_compacted, "delete": config.is_deleted_by_age}
    return {name for name, is_set in has.items() if is_set}
