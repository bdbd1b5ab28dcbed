"""Options: Kafka's names and defaults; what is wrong is refused and named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamlog.client import Tls
from streamlog.errors import InvalidConfig
from streamlog.spark.kafka_options import REFUSED_READ_OPTIONS, REFUSED_WRITE_OPTIONS
from streamlog.spark.options import EARLIEST, LATEST, READ_OPTIONS, parse_read_options
from streamlog.spark.sink.write_options import parse_write_options

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "spark.md"
GIVEN = {"server": "127.0.0.1:9644", "subscribe": "logs"}


def test_defaults_of_a_batch_query_are_kafkas_but_for_the_isolation_level() -> None:
    options = parse_read_options(GIVEN, streaming=False)
    assert options.chosen.topics == ("logs",)
    assert (options.start.everywhere, options.end.everywhere) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert (options.read_mode, options.isolation) == ("auto", "read_committed")
    assert options.min_partitions is None


def test_a_streaming_query_begins_at_the_latest_offsets() -> None:
    assert parse_read_options(GIVEN, streaming=True).start.everywhere == LATEST


def test_names_come_in_any_case_and_kafkas_server_is_understood() -> None:
    options = parse_read_options(
        {"KAFKA.BOOTSTRAP.SERVERS": "h:1", "Assign": '{"t": [1, 0]}', "minpartitions": "3"},
        streaming=False,
    )
    assert options.server == "h:1"
    assert options.chosen.partitions == (("t", 0), ("t", 1))
    assert options.min_partitions == 3


def test_files_of_certificates_turn_tls_on() -> None:
    assert parse_read_options(GIVEN, streaming=False).tls is None
    assert parse_read_options({**GIVEN, "tls": "true"}, streaming=False).tls == Tls()
    files = {"tlsCa": "a", "tlsCertificate": "c", "tlsKey": "k", "tlsServerName": "n"}
    assert parse_read_options({**GIVEN, **files}, streaming=True).tls == Tls("a", "c", "k", "n")
    written = parse_write_options({"server": "h:1", **files}, streaming=True)
    assert written.tls == Tls("a", "c", "k", "n")


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"tlsCa": "a", "tls": "false"}, "tlsCa"),
        ({"tlsKey": "k"}, "tlsKey"),
        ({"tls": "yes"}, "tls"),
        ({"tlsCa": " "}, "tlsCa"),
        ({"kafka.ssl.truststore.location": "x"}, "kafka.ssl.truststore.location"),
    ],
)
def test_wrong_options_of_tls_are_named(wrong: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"option {name} "):
        parse_read_options({**GIVEN, **wrong}, streaming=False)


@pytest.mark.parametrize(
    ("topics", "chosen"),
    [
        ({"subscribe": "b, a"}, [("a", 0), ("b", 0), ("b", 1)]),
        ({"subscribePattern": "[ab]"}, [("a", 0), ("b", 0), ("b", 1)]),
        ({"subscribePattern": "a"}, [("a", 0)]),
        ({"assign": '{"b": [1, 5]}'}, [("b", 1)]),
    ],
)
def test_partitions_are_chosen(topics: dict[str, str], chosen: list[tuple[str, int]]) -> None:
    options = parse_read_options({"server": "h:1", **topics}, streaming=False)
    assert options.chosen.of({"a": 1, "b": 2, "ab": 4}) == chosen


def test_offsets_and_timestamps_are_parsed() -> None:
    options = parse_read_options(
        {
            **GIVEN,
            "startingOffsets": '{"logs": {"0": 23, "1": -2}}',
            "endingOffsetsByTimestamp": '{"logs": {"0": 5}}',
        },
        streaming=False,
    )
    assert options.start.offsets == {("logs", 0): 23, ("logs", 1): -2}
    assert options.end.timestamps_ms == {("logs", 0): 5}


def test_a_timestamp_wins_over_offsets_as_in_kafkas_source() -> None:
    given = {**GIVEN, "startingOffsets": "earliest", "startingTimestamp": "77"}
    assert parse_read_options(given, streaming=False).start.timestamp_ms == 77


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"subscripe": "x"}, "did you mean subscribe"),
        ({"subscribePattern": "x"}, "not subscribe and subscribePattern"),
        ({"subscribe": " , "}, "subscribe"),
        ({"kafka.group.id": "g"}, "kafka.group.id"),
        ({"groupIdPrefix": "g"}, "groupIdPrefix has no meaning here: no consumer group"),
        ({"kafka.sasl.jaas.config": "x"}, "security setting of Kafka's client"),
        ({"kafka.isolation.level": "serializable"}, "option kafka.isolation.level is"),
        ({"kafka.isolation.level": " "}, "option kafka.isolation.level is empty"),
        (
            {"kafka.bootstrap.servers": "h:1"},
            "kafka.bootstrap.servers is 'h:1' and server is '127.0.0.1:9644': give one",
        ),
        (
            {"kafka.isolation.level": "read_committed", "isolation": "read_uncommitted"},
            "kafka.isolation.level is 'read_committed' and isolation is 'read_uncommitted'",
        ),
        ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger is for streaming"),
        ({"maxTriggerDelay": "5s"}, "maxTriggerDelay is for streaming"),
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"startingOffsets": '{"logs": {"0": -1}}'}, "startingOffsets"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "startingOffsets"),
        ({"startingOffsets": '{"logs": {"0": -3}}'}, "startingOffsets"),
        ({"startingOffsets": "soon"}, "startingOffsets"),
        ({"startingOffsets": '{"logs": {"²": 1}}'}, "startingOffsets"),
        ({"startingOffsets": '{"logs": {"0": 9223372036854775808}}'}, "startingOffsets"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"endingOffsets": '{"logs": {"0": -2}}'}, "endingOffsets"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"minPartitions": "many"}, "minPartitions"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss"),
        ({"readMode": "fast"}, "readMode"),
        ({"isolation": "serializable"}, "isolation"),
        ({"meta": "rocksdb:///x"}, "meta"),
        ({"store": "s4://x"}, "store"),
        ({"server": "nowhere"}, "server"),
        ({"server": "h:1,i:2"}, "one host:port"),
        ({"pinTtlMs": "5"}, "pinTtlMs"),
    ],
)
def test_a_wrong_option_is_refused_and_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        parse_read_options({**GIVEN, **given}, streaming=False)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"subscribe": "t"}, "server"),
        ({"server": "h:1"}, "subscribe"),
        ({"server": "h:1", "assign": "[1]"}, "assign"),
        ({"server": "h:1", "assign": '{"t": ["0"]}'}, "assign"),
        ({"server": "h:1", "assign": "{}"}, "assign"),
        ({"server": "h:1", "subscribePattern": "("}, "subscribePattern"),
        ({"store": "local:///x", "subscribe": "t", "readMode": "service"}, "readMode"),
    ],
)
def test_a_missing_option_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        parse_read_options(given, streaming=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_streaming_query_has_no_end(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "5"}.get(name, json.dumps({}))
    with pytest.raises(InvalidConfig, match=name):
        parse_read_options({**GIVEN, name: value}, streaming=True)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
            "minOffsetsPerTrigger is 9, more than maxOffsetsPerTrigger 5",
        ),
        ({"maxTriggerDelay": "5s"}, "give both"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "no time such as"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "5 weeks"}, "no time such as"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "-5s"}, "no time such as"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "9" * 5000}, "maxTriggerDelay cannot"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "9" * 400 + "us"}, "maxTriggerDelay"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "36501d"}, "longer than 36500d"),
        ({"minOffsetsPerTrigger": "-1"}, "minOffsetsPerTrigger is -1"),
        ({"minOffsetsPerTrigger": "9" * 30}, "minOffsetsPerTrigger"),
    ],
)
def test_a_wrong_wait_for_records_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        parse_read_options({**GIVEN, **given}, streaming=True)


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        ("500ms", 500),
        ("0s", 0),
        ("2500us", 2),
        ("0010s", 10_000),
        ("2m", 120_000),
        ("2min", 120_000),
        ("1H", 3_600_000),
        ("36500d", 36_500 * 86_400_000),
    ],
)
def test_the_wait_for_records_takes_sparks_times(text: str, delay_ms: int) -> None:
    given = {**GIVEN, "minOffsetsPerTrigger": "9", "maxTriggerDelay": text}
    assert parse_read_options(given, streaming=True).max_trigger_delay_ms == delay_ms


def test_the_default_wait_for_records_is_fifteen_minutes() -> None:
    options = parse_read_options({**GIVEN, "minOffsetsPerTrigger": "9"}, streaming=True)
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (9, 900_000)


@pytest.mark.parametrize("name", ["isolation", "kafka.isolation.level", "KAFKA.ISOLATION.LEVEL"])
def test_the_isolation_level_is_known_by_kafkas_name(name: str) -> None:
    options = parse_read_options({**GIVEN, name: "read_uncommitted"}, streaming=False)
    assert options.isolation == "read_uncommitted"


def test_an_error_about_the_server_names_the_option_that_was_given() -> None:
    given = {"subscribe": "t", "kafka.bootstrap.servers": "h:1,i:2"}
    with pytest.raises(InvalidConfig, match=r"option kafka\.bootstrap\.servers is 'h:1,i:2'"):
        parse_read_options(given, streaming=False)


def test_both_names_of_an_option_may_be_given_when_they_agree() -> None:
    given = {"server": "h:1", "kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    levels = {"isolation": "read_uncommitted", "kafka.isolation.level": "READ_UNCOMMITTED"}
    options = parse_read_options({**given, **levels}, streaming=False)
    assert (options.server, options.isolation) == ("h:1", "read_uncommitted")


@pytest.mark.parametrize("name", REFUSED_READ_OPTIONS)
def test_each_option_of_kafkas_source_that_is_missing_is_refused_with_its_reason(name: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_read_options({**GIVEN, name: "1"}, streaming=True)
    assert f"option {name} {REFUSED_READ_OPTIONS[name]}" in refused.value.message


@pytest.mark.parametrize("name", REFUSED_WRITE_OPTIONS)
def test_each_option_of_kafkas_sink_that_is_missing_is_refused_with_its_reason(name: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_write_options({"server": "h:1", "topic": "t", name: "1"}, streaming=True)
    assert f"option {name} {REFUSED_WRITE_OPTIONS[name]}" in refused.value.message


def test_every_option_is_in_the_docs() -> None:
    text = DOCUMENT.read_text("utf-8")
    names = [*READ_OPTIONS, *REFUSED_READ_OPTIONS, *REFUSED_WRITE_OPTIONS]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_reason_for_a_refusal_is_in_the_docs_as_the_error_gives_it() -> None:
    lines = set(DOCUMENT.read_text("utf-8").splitlines())
    reasons = [*REFUSED_READ_OPTIONS.items(), *REFUSED_WRITE_OPTIONS.items()]
    assert [name for name, why in reasons if f"| `{name}` | {why} |" not in lines] == []
