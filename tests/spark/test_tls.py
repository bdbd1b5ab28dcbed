"""Spark reads and writes through a node that requires certificates: driver and tasks alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin, Tls
from tests.support.certificates import Authority
from tests.support.node import NodeProcess


def test_driver_and_tasks_reach_the_node(spark: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    node, client = authority.issue("node"), authority.issue("client")
    flags = ("--tls-cert", str(node.certificate), "--tls-key", str(node.key))
    tls = Tls(str(authority.ca), str(client.certificate), str(client.key))
    options = {
        "tlsCa": str(authority.ca),
        "tlsCertificate": str(client.certificate),
        "tlsKey": str(client.key),
    }
    with NodeProcess(
        tmp_path / "data", arguments=(*flags, "--tls-client-ca", str(authority.ca))
    ) as running:
        with Admin(running.server, tls=tls) as admin:
            admin.create_topic("t", 2)
        rows = spark.range(10).selectExpr("cast(id as string) as value")
        written = rows.write.format("streamlog").options(server=running.server, **options)
        written.option("topic", "t").mode("append").save()

        def table(**how: str) -> Any:
            reader = spark.read.format("streamlog").option("server", running.server)
            return reader.options(subscribe="t", readMode="service", **how).load()

        values = {bytes(row.value) for row in table(**options).collect()}
        assert values == {b"%d" % number for number in range(10)}
        with pytest.raises(Exception, match="tlsCa"):
            table().collect()
