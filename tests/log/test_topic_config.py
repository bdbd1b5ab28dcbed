"""All of Kafka's topic settings: which values are taken, which refused, and why."""

from __future__ import annotations

import pytest

from streamlog.errors import InvalidConfig
from streamlog.log.api import topic_config
from streamlog.log.api.topic_config import DEFAULTS, KEPT, REFUSED, ConfigType, parse
from streamlog.log.configs.broker_synonyms import SYNONYMS

KAFKAS = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]
"""The names that Kafka 4.1's DescribeConfigs lists for a topic."""


OWN = "log.type"
"""The one setting that Kafka does not have."""
LATER = ["remote.copy.lag.bytes", "remote.copy.lag.ms"]
"""Those of KIP-1241, which is not in 4.1."""


def test_all_of_kafkas_settings_are_known_and_no_others() -> None:
    assert list(topic_config.public_names()) == sorted([*KAFKAS, *LATER, OWN])
    assert SYNONYMS.keys() < {*KAFKAS, *LATER}
    assert KEPT.keys() | REFUSED.keys() < {*KAFKAS, *LATER}
    assert not KEPT.keys() & REFUSED.keys()


@pytest.mark.parametrize("name", [*KAFKAS, *LATER])
def test_every_default_is_accepted_and_read_back(name: str) -> None:
    text = topic_config.value_of(DEFAULTS, name)
    assert parse({name: text}) == DEFAULTS
    assert topic_config.documentation(name)
    assert isinstance(topic_config.type_of(name), ConfigType)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("cleanup.policy", "", "must be of"),
        ("cleanup.policy", "shred", "must be of"),
        ("compression.type", "zstd", "compresses nothing anew"),
        ("compression.type", "brotli", "must be producer or"),
        ("compression.gzip.level", "0", "must be -1 or 1 to 9"),
        ("compression.lz4.level", "18", "must be 1 to 17"),
        ("flush.messages", "0", "must be 1"),
        ("follower.replication.throttled.replicas", "0-1", "partition:broker"),
        ("local.retention.ms", "5", "tiered storage"),
        ("local.retention.ms", "-3", "must be -2"),
        ("message.downconversion.enable", "true", "leave it out"),
        ("message.format.version", "3.0", "leave it out"),
        ("min.cleanable.dirty.ratio", "1.5", "must be 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "must be 0 to 1"),
        ("min.cleanable.dirty.ratio", "half", "must be a number"),
        ("min.insync.replicas", "0", "must be 1"),
        ("preallocate", "yes", "true or false"),
        ("remote.storage.enable", "true", "tiered storage"),
        ("retention.ms", "1_000", "whole number"),
        ("retention.ms", "9" * 30, "must be -1 to"),
        ("segment.bytes", "5", "must be 1048576"),
        ("segment.index.bytes", "3", "must be 4"),
    ],
)
def test_wrong_values_are_refused_with_the_reason(name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says) as refused:
        parse({name: text})
    assert refused.value.fields["name"] == name


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cleanup.policy", " delete,delete ", "delete"),
        ("compression.zstd.level", "-131072", "-131072"),
        ("flush.ms", "0", "0"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2"),
        ("min.insync.replicas", "3", "3"),
        ("preallocate", "TRUE", "true"),
        ("retention.bytes", "-5", "-1"),
        ("retention.ms", " 7 ", "7"),
        ("unclean.leader.election.enable", "true", "true"),
    ],
)
def test_kafkas_values_are_taken(name: str, text: str, value: str) -> None:
    assert topic_config.value_of(parse({name: text}), name) == value


TIERED = {"log.type": "unified", "remote.storage.enable": "true"}
KEPT_HERE = {**TIERED, "remote.log.copy.disable": "true"}
"""Nothing more is copied."""


@pytest.mark.parametrize("kind", ["bytes", "ms"])
@pytest.mark.parametrize(
    ("whole", "local", "taken"),
    [
        ("100", "-2", {"plain", "tiered", "kept"}),
        ("100", "100", {"plain", "tiered", "kept"}),
        ("100", "0", {"plain", "tiered"}),
        ("100", "200", {"plain"}),
        ("100", "-1", {"plain"}),
        ("-1", "-2", {"plain", "tiered", "kept"}),
        ("-1", "-1", {"plain", "tiered", "kept"}),
        ("-1", "200", {"plain", "tiered"}),
        ("0", "0", {"plain", "tiered", "kept"}),
        ("100", "-3", set()),
    ],
)
def test_limits_of_the_local_part_go_with_those_of_the_whole_as_in_kafka(
    kind: str, whole: str, local: str, taken: set[str]
) -> None:
    """`make test-kafka` asks a Kafka 4.1.1 for more of them."""
    limits = {f"retention.{kind}": whole, f"local.retention.{kind}": local}
    for name, kept in (("plain", {"log.type": "unified"}), ("tiered", TIERED), ("kept", KEPT_HERE)):
        if name in taken:
            assert parse({**kept, **limits})
            assert _alter(kept, set=limits) == {**kept, **limits}
            continue
        with pytest.raises(InvalidConfig, match=r"local\.retention") as refused:
            parse({**kept, **limits})
        assert refused.value.fields["name"] == f"local.retention.{kind}"
        with pytest.raises(InvalidConfig, match=r"local\.retention"):
            _alter(kept, set=limits)


@pytest.mark.parametrize("switch", ["remote.storage.enable", "remote.log.copy.disable"])
def test_limits_that_a_topic_has_are_looked_at_when_its_tier_is_switched(switch: str) -> None:
    before = {**KEPT_HERE, "retention.ms": "100", "local.retention.ms": "7"}
    del before[switch]
    if switch == "remote.storage.enable":
        before["local.retention.ms"] = "200"
    parse(before)
    with pytest.raises(InvalidConfig, match=r"local\.retention\.ms"):
        _alter(before, set={switch: "true"})
    assert _alter(before, set={switch: "true", "local.retention.ms": "-2"})


def test_minus_two_is_the_limit_of_the_whole_log() -> None:
    whole = {"retention.bytes": "5", "retention.ms": "7"}
    assert parse({**TIERED, **whole}).local_limits == (5, 7)
    local = {"local.retention.bytes": "-2", "local.retention.ms": "3"}
    assert parse({**TIERED, **whole, **local}).local_limits == (5, 3)
    # Of the whole log it is no limit, as any negative number.
    both = {"retention.bytes": "-2", "local.retention.bytes": "-2"}
    assert parse({**TIERED, **both}).local_limits[0] == -1


def test_a_least_lag_above_the_greatest_is_refused() -> None:
    lags = {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}
    with pytest.raises(InvalidConfig, match="lower it"):
        parse(lags)
    with pytest.raises(InvalidConfig, match="lower it"):
        _alter({"max.compaction.lag.ms": "8"}, set={"min.compaction.lag.ms": "9"})
    assert parse(lags, is_stored=True).min_compaction_lag_ms == 9


def test_what_another_version_stored_can_be_deleted_and_is_not_checked_again() -> None:
    stored = {"new.setting": "1", "segment.bytes": "5", "compression.type": "zstd"}
    assert parse(stored, is_stored=True).segment_bytes == 5
    changed = _alter(stored, set={"retention.ms": "7"}, delete=["new.setting"])
    assert changed == {"segment.bytes": "5", "compression.type": "zstd", "retention.ms": "7"}
    with pytest.raises(InvalidConfig, match="unknown topic setting"):
        _alter({}, delete=["new.setting"])


def test_append_and_subtract_work_on_lists_alone() -> None:
    name = "leader.replication.throttled.replicas"
    both = _alter({name: "0:1"}, append={name: "1:1,0:1"})
    assert both == {name: "0:1,1:1"}
    assert _alter(both, subtract={name: "0:1"}) == {name: "1:1"}
    assert _alter(both, subtract={name: "0:1,1:1"}) == {name: ""}
    for wrong in ("retention.ms", "message.timestamp.type"):
        with pytest.raises(InvalidConfig, match="holds one value"):
            _alter({}, append={wrong: "1"})


def _alter(
    configs: dict[str, str],
    *,
    set: dict[str, str] | None = None,
    delete: list[str] | None = None,
    append: dict[str, str] | None = None,
    subtract: dict[str, str] | None = None,
) -> dict[str, str]:
    return topic_config.alter(
        configs, set=set or {}, delete=delete or [], append=append or {}, subtract=subtract or {}
    )
