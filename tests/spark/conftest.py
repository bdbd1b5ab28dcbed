"""Nodes and the one Spark session of the suite."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin
from tests.spark.jvm import QUICK_JVM
from tests.support.node import NodeProcess
from tests.support.s3 import S3Tests

ROOT = Path(__file__).resolve().parents[2]
_numbers = itertools.count()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """On local files; what is acknowledged is in objects."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", wal="object") as running:
        yield running


@pytest.fixture
def new_topic(node: NodeProcess) -> Callable[..., str]:
    """Makes a topic of the node that no other test has."""

    def make(partitions: int = 2, **configs: str) -> str:
        name = f"topic{next(_numbers)}"
        named = {key.replace("_", "."): value for key, value in configs.items()}
        with Admin(node.server) as admin:
            admin.create_topic(name, partitions, named)
        return name

    return make


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, s3_tests: S3Tests) -> Iterator[Any]:
    """Local mode, two cores; its Python workers find this tree and nothing is registered.

    They have the environment of the session's start, and so the S3 server's credentials.
    """
    pyspark_sql = pytest.importorskip("pyspark.sql")
    folder = tmp_path_factory.mktemp("spark")
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        **s3_tests.server.environment,
        **QUICK_JVM,
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    session = (
        pyspark_sql.SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "768m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.streaming.stopTimeout", "120s")
        # A Python worker that starts on a busy machine.
        .config("spark.python.authenticate.socketTimeout", "600s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
