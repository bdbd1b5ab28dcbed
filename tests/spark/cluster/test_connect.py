"""The source and the sink through Spark Connect: a server and a client, each its own process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlog.demo.child import terminate
from streamlog.demo.ports import free_port
from tests.spark.conftest import ROOT
from tests.spark.reading import produce
from tests.spark.standalone import SPARK_HOME, environment
from tests.support.node import NodeProcess

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]

WAIT_S = 1500


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Its URL. Started as sbin/start-connect-server.sh does."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        # The server lives for a few queries: what it compiles, it hardly runs.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        # A Python worker that starts on a busy machine.
        "spark.python.authenticate.socketTimeout": "600s",
    }
    confs = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [
        str(SPARK_HOME / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", "local[2]", "--driver-memory", "768m", *confs),
        "spark-internal",
    ]
    log_path = folder / "connect.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log, cwd=folder)
    try:
        ends_at = time.monotonic() + WAIT_S
        while not _listens(port):
            assert process.poll() is None, log_path.read_text()[-4000:]
            assert time.monotonic() < ends_at, log_path.read_text()[-4000:]
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        terminate(process, WAIT_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_client_reads_streams_and_writes_exactly_once(
    node: NodeProcess, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, target = new_topic(), new_topic()
    values = [f"value {n}" for n in range(90)]
    produce(node.server, source, [(n % 2, value.encode()) for n, value in enumerate(values)])
    with connect_server(tmp_path) as url:
        job = subprocess.run(
            [
                *(sys.executable, "-m", "tests.spark.connect_job"),
                *(url, node.server, source, target, str(tmp_path)),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert job.returncode == 0, job.stderr[-4000:]
    found = json.loads(job.stdout.splitlines()[-1])
    numbers = [*range(0, 90, 2), *range(1, 90, 2)]
    assert found["rows"] == [[n % 2, n // 2, values[n]] for n in numbers]
    _check_metrics(found["metrics"])
    _check_progress(found["progress"], source)
    # The batch whose note was lost is done again, and written once.
    assert 1 in [one["batch"] for one in found["replayed"]]
    expected = [f"{kind} {value}" for kind in ("copy", "each") for value in values]
    assert Counter(found["written"]) == Counter([*expected, "batch 0", "batch 1", "batch 2"])
    assert (found["wave"], found["tasks"]) == (2, [6, 8])
    imported = found["imported"]
    assert (imported["json"], imported["parquet"]) == (2, 2)
    assert "Take one column with --value" in imported["refused"]


def _check_metrics(found: list[dict[str, Any]]) -> None:
    """`orderBy` may read twice: to find the bounds of its ranges, and then all."""
    mine = [one for one in found if one["read"] == "mine"]
    plan = next(one for one in mine if one["what"] == "plan")
    assert (plan["mode"], plan["store_records"], plan["service_records"]) == ("store", 90, 0)
    whole = [one for one in mine if one["what"] == "task" and one["is_whole"]]
    by_stage = Counter[int]()
    for task in whole:
        by_stage[task["stage"]] += task["store_records"]
        assert task["service_records"] == 0
        assert task["store_bytes"] > task["store_records"]
    assert 90 in by_stage.values()


def _check_progress(found: list[dict[str, Any]], topic: str) -> None:
    lags = []
    for one in found:
        reported = one["latestOffset"]
        reported = json.loads(reported) if isinstance(reported, str) else reported
        assert reported["offsets"] == {topic: {"0": 45, "1": 45}}
        assert reported["readMode"] == "store"
        lags.append((reported["lag"], reported["lagRecords"]))
    assert lags[0] == ({topic: {"0": 20, "1": 20}}, 40)
    assert lags[-1] == ({topic: {"0": 0, "1": 0}}, 0)
