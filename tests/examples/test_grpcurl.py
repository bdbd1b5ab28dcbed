"""A gRPC client in another language, by reflection alone: no proto file, no Python."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.grpcurl import grpcurl
from tests.support.node import NodeProcess


def text(value: str) -> str:
    """bytes fields are base64 in JSON."""
    return base64.b64encode(value.encode()).decode()


@pytest.mark.timeout(300)
def test_produce_and_consume_with_grpcurl(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:

        def call(method: str, request: Any) -> Any:
            ended = subprocess.run(
                [
                    *(grpcurl(), "-plaintext", "-d", json.dumps(request)),
                    *(node.server, f"streamlog.v1.{method}"),
                ],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert ended.returncode == 0, ended.stderr
            return json.loads(ended.stdout)

        call("AdminService/CreateTopics", {"topics": [{"name": "t", "partitions": 1}]})
        records = [
            {"key": text("k"), "value": text("one"), "headers": [{"key": "h", "value": text("v")}]},
            {"value": text("two"), "timestampMs": "1700000000000"},
        ]
        answer = call(
            "LogService/Produce",
            {"topics": [{"topic": "t", "partitions": [{"records": {"records": records}}]}]},
        )
        (produced,) = answer["topics"][0]["partitions"]
        assert "error" not in produced
        answer = call(
            "LogService/Fetch",
            {
                "format": "FETCH_FORMAT_RECORDS",
                "topics": [{"topic": "t", "partitions": [{"fetchOffset": "0"}]}],
            },
        )
        (fetched,) = answer["topics"][0]["partitions"]
        first, second = fetched["records"]
        assert (first["key"], first["value"]) == (text("k"), text("one"))
        assert first["headers"] == [{"key": "h", "value": text("v")}]
        assert (second["value"], second["timestamp_ms"]) == (text("two"), "1700000000000")
        assert second["offset"] == "1"
        assert fetched["next_offset"] == "2"
