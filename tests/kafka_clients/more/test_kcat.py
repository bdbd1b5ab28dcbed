"""kcat 1.7, on librdkafka 2.0: an old client that has to go on working."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from streamlog.codec.batch import scan
from tests.kafka_clients.brokers import BROKERS, Broker
from tests.kafka_clients.cases import CODECS
from tests.kafka_clients.checks import fetched

pytestmark = pytest.mark.parametrize("broker", BROKERS, indirect=True)


def _kcat(broker: Broker, *arguments: str, stdin: str = "") -> str:
    program = shutil.which("kcat")
    assert program is not None, "kcat is not on the PATH: apt install kcat"
    ended = subprocess.run(
        [program, "-b", broker.bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _json_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed_and_compressed(broker: Broker, codec: str) -> None:
    topic, line = f"kcat-{codec}", "x" * 500
    _kcat(broker, "-P", "-t", topic, "-p", "0", "-z", codec, "-K", ":", stdin=f"k:{line}\n" * 20)
    consumed = _kcat(broker, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-J")
    records = _json_lines(consumed)
    assert [(one["offset"], one["key"], one["payload"]) for one in records] == [
        (offset, "k", line) for offset in range(20)
    ]
    stored = {CODECS[batch.header.codec] for batch in scan(fetched(broker, topic))}
    assert stored == {codec}


def test_an_idempotent_producer_and_the_end_of_a_partition(broker: Broker) -> None:
    lines = "".join(f"{number}\n" for number in range(1000))
    settings = ("-X", "enable.idempotence=true", "-X", "batch.num.messages=10")
    _kcat(broker, "-P", "-t", "kcat-once", "-p", "0", *settings, stdin=lines)
    consume = ("-C", "-t", "kcat-once", "-p", "0", "-e", "-q")
    assert _kcat(broker, *consume, "-o", "beginning") == lines
    assert _kcat(broker, *consume, "-o", "-2") == "998\n999\n"


def test_metadata_and_offsets(broker: Broker) -> None:
    _kcat(broker, "-P", "-t", "kcat-listed", "-p", "0", stdin="a\nb\n")
    (found,) = json.loads(_kcat(broker, "-L", "-J", "-t", "kcat-listed"))["topics"]
    assert [part["partition"] for part in found["partitions"]][:1] == [0]
    assert _kcat(broker, "-Q", "-t", "kcat-listed:0:-1").strip() == "kcat-listed [0] offset 2"
    assert _kcat(broker, "-Q", "-t", "kcat-listed:0:-2").strip() == "kcat-listed [0] offset 0"
