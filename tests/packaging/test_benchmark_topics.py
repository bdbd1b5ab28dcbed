"""Topics of the Kafka benchmark are new, and have the settings that their rows speak of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from benchmarks.kafka.kinds import DURABLE_SETTINGS, LAZY_SETTINGS
from benchmarks.kafka.servers import PARTITIONS, Server, node_server
from benchmarks.kafka.wire import KafkaConnection
from streamlog.errors import Internal


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with node_server(tmp_path_factory.mktemp("bench") / "node") as server:
        yield server


def test_each_kind_of_topic_has_the_settings_that_its_rows_speak_of(node: Server) -> None:
    names = [
        replace(node, name=name, topic_settings=dict(settings), kept=[]).new_topic("mine")
        for name, settings in (("a", {}), ("b", DURABLE_SETTINGS), ("c", LAZY_SETTINGS))
    ]
    with KafkaConnection(node.address) as connection:
        found = [connection.topic_settings(name, ["log.type", "flush.ms"]) for name in names]
    assert [one["log.type"] for one in found] == ["shared", "unified", "unified"]
    assert [one["flush.ms"] == "1000" for one in found] == [False, False, True]


def test_a_topic_that_was_there_ends_the_case(node: Server) -> None:
    with KafkaConnection(node.address) as connection:
        connection.make_topic("there-other-1", PARTITIONS)
    with pytest.raises(Internal, match="there-other-1 was there before other made it"):
        replace(node, name="other", topics=0, kept=[]).new_topic("there")


def test_settings_that_got_lost_end_the_case(node: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made = KafkaConnection.make_topic

    def without_settings(
        self: KafkaConnection, name: str, partitions: int, _: Mapping[str, str] | None = None
    ) -> bool:
        return made(self, name, partitions)

    monkeypatch.setattr(KafkaConnection, "make_topic", without_settings)
    lazy = replace(node, name="lazy", topic_settings=dict(LAZY_SETTINGS), kept=[])
    with pytest.raises(Internal, match=r"has .*shared.* instead of .*unified"):
        lazy.new_topic("lost")
