"""Spark's own Kafka source and sink, against a real Kafka and a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks.spark.jars import connector_jars
from tests.kafka_clients.brokers import BROKERS, Broker
from tests.kafka_clients.client_programs import ROOT


@pytest.mark.timeout(400)
@pytest.mark.parametrize("broker", BROKERS, indirect=True)
def test_spark_writes_reads_and_streams(broker: Broker) -> None:
    jars = ",".join(map(str, connector_jars().paths))
    program = [sys.executable, "-m", "tests.kafka_clients.programs.spark"]
    ended = subprocess.run(
        [*program, broker.bootstrap, "case", jars],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=360,
        check=False,
    )
    told = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert [(one["case"], one["error"]) for one in told] == [
        ("write", None),
        ("read", None),
        ("stream", None),
    ], ended.stderr[-3000:]
